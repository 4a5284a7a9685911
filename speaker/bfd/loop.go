package bfd

import (
	crand "crypto/rand"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/ppoll"
)

// retry is the pause before opening a failed socket again.
const retry = time.Second

// loop is the state of the thread of Run. A tick without changes allocates nothing.
type loop struct {
	d              *Driver
	core           *Core
	random         *rand.Rand
	wake           int
	next           time.Time // when the core's next tick is due
	retryAt        time.Time // when sockets are checked again, zero for never
	synced         uint64    // the core's generation that the sockets match
	filtersCurrent bool      // the sockets' filters correspond to the sessions
	receivers      map[kind]*receiver
	ports          map[uint32]*port
	polled         []unix.PollFd
	buffer         []byte
	names          map[string]string // reported names, with the errors of their configurations
}

// port is a session's state outside the core.
type port struct {
	sender
	name           string // its name in the metrics, empty while it ends
	sent, received prometheus.Counter
	// on is the index of the single-hop peer's interface, 0 if unknown; routed is when it was last determined.
	on     int
	routed time.Time
}

// count changes the name in the metrics.
func (p *port) count(m *metrics, name string) {
	m.remove(p.name)
	p.name = name
	p.sent, p.received = m.counters(name)
}

// open creates the loop, and the eventfd that wakes it.
func (d *Driver) open() (*loop, error) {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails
	random := rand.New(rand.NewChaCha8(seed))
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("run BFD: make an eventfd: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wake, d.fresh = wake, d.wanted != nil
	l := &loop{d: d, core: NewCore(d.options.Independent, random), random: random, wake: wake, receivers: map[kind]*receiver{}, ports: map[uint32]*port{},
		buffer: make([]byte, 0, PacketLen), names: map[string]string{}}
	l.watch()
	d.wakeLoop()
	return l, nil
}

func (l *loop) close() {
	l.d.mu.Lock()
	l.d.wake = -1
	l.d.mu.Unlock()
	unix.Close(l.wake)
	for _, r := range l.receivers {
		r.close()
	}
	for _, p := range l.ports {
		p.close()
		l.d.metrics.remove(p.name)
	}
}

// iterate waits for work, and does it.
func (l *loop) iterate() error {
	due := earliest(l.next, l.retryAt)
	timeout := ppoll.Forever
	if !due.IsZero() {
		timeout = max(0, time.Until(due))
	}
	if err := ppoll.Wait(l.polled, timeout); err != nil {
		return fmt.Errorf("wait for BFD packets: %w", err)
	}
	now := time.Now()
	if !l.next.IsZero() && now.After(l.next) {
		l.d.metrics.late.Observe(now.Sub(l.next).Seconds())
	}
	if l.polled[0].Revents != 0 {
		l.take(now)
	}
	// All packets that arrived before now are read before anything expires at now: a late reader must not expire a live
	// session.
	for _, r := range l.receivers {
		l.drain(now, r)
	}
	l.core.Tick(now)
	l.changed()
	if l.core.Generation() != l.synced || !l.retryAt.IsZero() && !now.Before(l.retryAt) {
		l.sync(now)
	}
	if !l.filtersCurrent {
		l.filter(now)
	}
	l.send()
	l.next = l.core.Next()
	return nil
}

// take takes over the configured sessions.
func (l *loop) take(now time.Time) {
	var b [8]byte
	_, _ = unix.Read(l.wake, b[:])
	l.d.mu.Lock()
	wanted, wrong, fresh := l.d.wanted, l.d.wrong, l.d.fresh
	l.d.fresh = false
	l.d.mu.Unlock()
	if !fresh {
		return
	}
	for name := range l.names {
		_, right := wanted[name]
		if _, known := wrong[name]; !right && !known {
			delete(l.names, name)
			l.d.reports.gone(name)
		}
	}
	for name, err := range wrong {
		if l.names[name] == err.Error() {
			continue
		}
		l.names[name] = err.Error()
		l.d.reports.add(map[string]Status{name: {State: Down.View(), Since: now, Reason: NeverUp, RemoteState: Down.View(), Problem: err.Error()}})
	}
	for name := range wanted {
		l.names[name] = ""
	}
	l.core.Set(now, wanted)
	l.changed()
}

// drain reads all pending packets, but a bounded number, so that a flood cannot delay the loop indefinitely.
func (l *loop) drain(now time.Time, r *receiver) {
	if r.fd < 0 {
		return
	}
	var overLimit []uint32
	for range 4 * receiveBuffer / 256 {
		in, index, ok := r.read()
		if !ok {
			break
		}
		in.Index = index
		initial := len(in.Data) >= 12 && in.Data[8]|in.Data[9]|in.Data[10]|in.Data[11] == 0
		if initial {
			in.Interface = r.interfaceName(index)
		}
		result := l.core.Receive(now, in)
		if result.Drop != Accepted {
			l.d.metrics.dropped[result.Drop].Inc()
			if result.Drop == DropInterface {
				l.resyncAfter(now, rebind) // the peer's interface may have changed
			}
			if r.count(now, 0) {
				l.filter(now)
			}
			continue
		}
		if initial && r.count(now, result.Session) {
			overLimit = append(overLimit, result.Session)
			l.filter(now)
		}
		if p := l.ports[result.Session]; p != nil {
			p.received.Inc()
		}
		if result.Silence > 0 {
			l.d.metrics.silence.Observe(result.Silence)
		}
		l.changed()
	}
	for _, discr := range overLimit { // packets from before the filter are read
		l.core.ResetRemote(now, discr)
		l.changed()
	}
}

// changed queues the status changes for the report.
func (l *loop) changed() {
	if changed := l.core.Changed(); changed != nil {
		l.filtersCurrent = false // a session that is up has other packets than one that is not
		l.d.reports.add(changed)
		l.resyncAfter(time.Now(), recheck) // a session that is down may need another source address
	}
}

// send sends the core's packets.
func (l *loop) send() {
	for _, out := range l.core.Out() {
		p := l.ports[out.Session]
		if p == nil {
			continue
		}
		l.buffer = out.Packet.Append(l.buffer[:0])
		err := p.send(l.buffer)
		switch {
		case err == nil:
			p.sent.Inc()
			p.failing(l, "")
		case p.fd < 0: // already reported
			l.d.metrics.unsent.Inc()
		default:
			l.d.metrics.unsent.Inc()
			p.failing(l, fmt.Sprintf("send to %v: %v", p.key.Peer, err))
		}
	}
	l.changed()
}

// failing records the error that prevents a session from sending.
func (p *port) failing(l *loop, what string) {
	if p.problem != what {
		p.problem = what
		l.problems()
	}
}

// problems passes to the core the error that prevents each session from sending or receiving.
func (l *loop) problems() {
	l.core.Sessions(func(discr uint32, k Key, _ []string) {
		p, r := l.ports[discr], l.receivers[kindOf(k)]
		switch {
		case r != nil && r.problem != "":
			l.core.Problem(discr, r.problem)
		case p != nil:
			l.core.Problem(discr, p.problem)
		}
	})
}

// sync opens and closes sockets to match the sessions, and retries what failed.
func (l *loop) sync(now time.Time) {
	l.synced, l.retryAt = l.core.Generation(), time.Time{}
	kinds, first := map[kind]bool{}, map[uint32]string{}
	l.core.Sessions(func(discr uint32, k Key, names []string) {
		kinds[kindOf(k)] = true
		first[discr] = strings.Join(names[:min(1, len(names))], "")
	})
	maps.DeleteFunc(l.ports, func(discr uint32, p *port) bool {
		name, alive := first[discr]
		if p.name != name {
			p.count(l.d.metrics, "") // before another session takes the name over
		}
		if !alive {
			p.close()
		}
		return !alive
	})
	l.core.Sessions(func(discr uint32, k Key, _ []string) { l.openPort(now, discr, k, first[discr]) })
	maps.DeleteFunc(l.receivers, func(k kind, r *receiver) bool {
		if kinds[k] {
			return false
		}
		r.close()
		return true
	})
	for k := range kinds {
		r := l.receivers[k]
		if r == nil {
			r = &receiver{kind: k, fd: -1}
			l.receivers[k] = r
		}
		if r.fd < 0 {
			r.problem = ""
			if err := r.open(); err != nil {
				r.problem = err.Error()
				l.resyncAfter(now, retry)
			}
		}
	}
	l.filter(now)
	l.problems()
	l.changed()
	l.watch()
}

// openPort opens the socket of a session, or reopens it if the kernel would now send from another address.
func (l *loop) openPort(now time.Time, discr uint32, k Key, name string) {
	p := l.ports[discr]
	if p == nil {
		p = &port{sender: sender{key: k, fd: -1}}
		l.ports[discr] = p
	}
	if p.sent == nil || p.name != name {
		p.count(l.d.metrics, name)
	}
	if !k.MultiHop {
		if now.Sub(p.routed) >= rebind {
			p.routed, p.on = now, k.routed()
			l.core.Bind(discr, p.on)
		}
		l.resyncAfter(now, recheck)
	}
	if !l.core.Up(discr) {
		if now.Sub(p.checked) >= recheck {
			if p.checked = now; p.stale() {
				p.close()
			}
		}
		l.resyncAfter(now, recheck)
	}
	if p.fd >= 0 {
		return
	}
	p.problem = ""
	if err := p.open(l.random, l.portUsed); err != nil {
		p.problem = err.Error()
		l.resyncAfter(now, retry)
	}
}

func (l *loop) portUsed(number uint16) bool {
	for _, p := range l.ports {
		if p.fd >= 0 && p.port == number {
			return true
		}
	}
	return false
}

// resyncAfter schedules a call of sync.
func (l *loop) resyncAfter(now time.Time, after time.Duration) {
	l.retryAt = earliest(l.retryAt, now.Add(after))
}

// watch lists the descriptors that the loop polls.
func (l *loop) watch() {
	l.polled = append(l.polled[:0], unix.PollFd{Fd: int32(l.wake), Events: unix.POLLIN})
	for _, r := range l.receivers {
		if r.fd >= 0 {
			l.polled = append(l.polled, unix.PollFd{Fd: int32(r.fd), Events: unix.POLLIN})
		}
	}
}
