package member

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/ppoll"
	"github.com/ironlb/ironlb/speaker/view"
)

// DefaultPort is the speakers' UDP port. IANA has no assignment from 7934 up to it; 7946 is memberlist's, which MetalLB
// uses.
const DefaultPort = 7948

// Options configure a Detector.
type Options struct {
	Node, Cluster string
	Keys          [][]byte
	Profile       Profile
	Port          uint16 // 0: DefaultPort
	Log           *slog.Logger
	// Wake is called when Observe would return a change. It must not block.
	Wake    func()
	Metrics prometheus.Registerer
	// Scheduled is called from Run with the scheduling class of its thread, and the reason if that is not Deadline. May
	// be nil.
	Scheduled func(class, message string)
	// Retained is set if this node answers for the claims of a previous process, until Settled.
	Retained bool
	// Wedged is the time without a call of Observe after which the reconcile loop counts as stuck; 0: wedgedAfter.
	Wedged time.Duration
	// Authorities are digests of the cluster's certificate authority, by AuthorityKey. Empty: not compared.
	Authorities []uint64
	// Received is called from Run on each change of what this node receives. It must not block. May be nil.
	Received func(Reception)
	// Broadcast sends to all hosts of a segment instead of the group, for networks that drop the group. Both are always
	// received.
	Broadcast bool
}

// Detector runs a Core on UDP sockets: to a group of link-local scope on the segments, and by unicast to the other
// nodes.
//
// One goroutine owns the Core. The methods put their arguments into an inbox, which the loop empties at its next tick,
// and return what the loop stored for them. So no method waits for the network.
type Detector struct {
	options Options
	core    *Core
	metrics *metrics
	wake    int // eventfd
	start   time.Time

	// heartbeat is the time of the last heartbeat, since start; fenced and limit belong to it. Fresh reads them from any
	// goroutine.
	heartbeat, limit atomic.Int64
	fenced           atomic.Bool
	left             atomic.Bool

	// observed is the time of the last call of Observe, since start; 0 before the first.
	observed atomic.Int64

	mu      sync.Mutex // of the boxes
	in      inbox
	results results

	health   atomic.Pointer[Health]
	macs     atomic.Pointer[map[[6]byte]string]
	slots    atomic.Pointer[map[string]uint64] // digests that differ from this node's
	away     atomic.Pointer[[]Neighbor]        // to be probed
	probing  chan struct{}                     // receives when away has nodes again
	compared atomic.Pointer[uint64]            // the last argument of CompareSlots
	segments chan []string
}

// inbox is what the loop takes over at its next tick; nil means unchanged.
type inbox struct {
	published *view.LocalState
	fence     uint64 // number of fences when the claims were decided
	peers     map[string][]netip.Addr
	keys      [][]byte
	ports     *ports
	// authorities are the new digests.
	authorities []uint64
	slots       *uint64
	settled     bool
	// answered and silent are away nodes.
	answered, silent []Neighbor
	answers          map[string]view.Answers
	// retained is how long the node answers after the end; retainedFence is the number of fences when that was decided.
	retained      time.Duration
	retainedFence uint64
}

// results is what Observe returns next.
type results struct {
	members     view.Members
	nodes       map[string]struct{}
	vips        map[view.VIPID]struct{}
	fences      uint64
	fencesAcked uint64 // fences that the reconcile loop has observed
}

// New returns a Detector; Run starts it. New fails if the options are not usable.
func New(o Options) (*Detector, error) {
	if o.Port == 0 {
		o.Port = DefaultPort
	}
	o.Wedged = cmp.Or(o.Wedged, wedgedAfter)
	now := time.Now()
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails
	core, err := NewCore(Config{
		Node: o.Node, Cluster: o.Cluster, Keys: o.Keys, Profile: o.Profile,
		Incarnation: uint64(now.UnixNano()), Nonce: binary.BigEndian.Uint64(nonce[:]), Seed: uint64(now.UnixNano()), Retained: o.Retained,
		Broadcast: o.Broadcast, Authorities: o.Authorities,
	})
	if err != nil {
		return nil, err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	d := &Detector{options: o, core: core, wake: wake, start: now, metrics: newMetrics(o.Metrics),
		probing: make(chan struct{}, 1), segments: make(chan []string, 1)}
	d.heartbeat.Store(-int64(time.Hour)) // not fresh before the first one
	d.limit.Store(int64(core.FenceAfter()))
	d.macs.Store(&map[[6]byte]string{})
	d.slots.Store(&map[string]uint64{})
	d.results.members.Observer = true
	d.results.nodes, d.results.vips = map[string]struct{}{}, map[view.VIPID]struct{}{}
	return d, nil
}

// Observe returns the state and claims of all members, and the nodes and VirtualIPs whose state or claims changed since
// the last call. This node is among the nodes when Observer, Isolated or Returned changed.
func (d *Detector) Observe() (view.Members, map[string]struct{}, map[view.VIPID]struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	nodes, vips := d.results.nodes, d.results.vips
	d.results.nodes, d.results.vips = map[string]struct{}{}, map[view.VIPID]struct{}{}
	d.results.fencesAcked = d.results.fences
	d.observed.Store(int64(time.Since(d.start)))
	return d.results.members, nodes, vips
}

// Publish advertises this node's claims to the others, at once if they differ. The argument must not change afterwards.
// Claims decided before a fence that Observe has not returned yet are dropped.
func (d *Detector) Publish(w view.LocalState) {
	d.put(func(in *inbox) { in.published, in.fence = &w, d.results.fencesAcked })
}

// SetPeers sets the Nodes and their InternalIPs. The map must not change afterwards.
func (d *Detector) SetPeers(peers map[string][]netip.Addr) {
	d.put(func(in *inbox) { in.peers = peers })
}

// SetKeys changes the keys; on an error the old ones remain.
func (d *Detector) SetKeys(keys [][]byte) error {
	if _, err := newKeyring(keys); err != nil {
		return err
	}
	d.put(func(in *inbox) { in.keys = keys })
	return nil
}

// SetAuthorities changes the digests of the cluster's certificate authority. Earlier ones count until the process ends.
func (d *Detector) SetAuthorities(authorities []uint64) {
	d.put(func(in *inbox) { in.authorities = authorities })
}

// Retain sets how long the node continues to answer for its claims after Run; the goodbye carries it. It has no effect
// if there is a fence that Observe has not returned yet.
func (d *Detector) Retain(lifetime time.Duration) {
	d.put(func(in *inbox) { in.retained, in.retainedFence = lifetime, d.results.fencesAcked })
}

// Left reports, after Run, whether a goodbye without retention was sent.
func (d *Detector) Left() bool { return d.left.Load() }

// Settled records that nothing is retained any more from a previous process.
func (d *Detector) Settled() {
	d.put(func(in *inbox) { in.settled = true })
}

// SetAnswers sets what hosts answer on silent interfaces; see Core.SetAnswers. The map must not change afterwards.
func (d *Detector) SetAnswers(answers map[string]view.Answers) {
	d.put(func(in *inbox) { in.answers = answers })
}

// SetSegments sets the interfaces on which VirtualIPs are or may be announced. It must be called again whenever an
// interface or an address of the node has changed.
func (d *Detector) SetSegments(names []string) {
	names = slices.Clone(names)
	for {
		select {
		case d.segments <- names:
			return
		case <-d.segments:
		}
	}
}

// Fresh reports whether this node may answer for its VirtualIPs now: the loop sends heartbeats, and no fence is in
// force. It takes no lock.
func (d *Detector) Fresh() bool {
	heartbeat := d.heartbeat.Load() // first: a tick that fences sets fenced before heartbeat
	return !d.fenced.Load() && int64(time.Since(d.start))-heartbeat <= d.limit.Load()
}

// MACs returns the hardware addresses that the other nodes advertise. The map must not be changed.
func (d *Detector) MACs() map[[6]byte]string { return *d.macs.Load() }

// CompareSlots advertises the digest of this node's slots of direct forwarding, and returns those of the members that
// should have the same and do not. The result is at most slotsEvery old. The map must not be changed.
func (d *Detector) CompareSlots(digest uint64) map[string]uint64 {
	if last := d.compared.Swap(&digest); last == nil || *last != digest {
		d.put(func(in *inbox) { in.slots = &digest })
	}
	return *d.slots.Load()
}

func (d *Detector) put(f func(*inbox)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.in)
	if d.wake >= 0 {
		_, _ = unix.Write(d.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // full means that the loop is awake
	}
}

// Run sends and receives until ctx ends, in the network namespace of the calling thread, and then sends a goodbye.
func (d *Detector) Run(ctx context.Context) error {
	runtime.LockOSThread() // for its priority and its namespace
	defer runtime.UnlockOSThread()
	loop, err := d.open()
	if err != nil {
		return err
	}
	defer loop.close()
	defer loop.restore()

	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.follow(ctx, loop.lister)
	}()
	defer func() { cancel(); <-done }()
	stop := context.AfterFunc(ctx, func() { d.put(func(*inbox) {}) })
	defer stop()
	for ctx.Err() == nil {
		if err := loop.iterate(); err != nil {
			return err
		}
	}
	loop.goodbye()
	return nil
}

// goodbyes is the number of rounds of goodbyes of a retained node, goodbyePause apart. A node that receives none of
// them counts this one as dead, although its kernel still answers.
const (
	goodbyes     = 3
	goodbyePause = 50 * time.Millisecond
)

// goodbye announces the end of this process, and how long the node continues to answer.
func (l *loop) goodbye() {
	heartbeat := l.heartbeat.Swap(-int64(time.Hour)) // no answer after the goodbye
	l.applyInbox()
	stalled := int64(time.Since(l.start))-heartbeat > l.limit.Load()
	if stalled || l.core.Fenced() || l.core.Fences() != l.retainedFence {
		l.retained = 0
	}
	sends := l.core.Goodbye(l.retained)
	l.send(sends)
	if l.retained == 0 {
		l.left.Store(len(sends) > 0)
		return
	}
	for range goodbyes - 1 {
		<-time.After(goodbyePause)
		l.send(l.core.Goodbye(l.retained))
	}
}

const (
	// probeAfter is how often nodes without a process are probed.
	probeAfter = time.Second
	// relistAfter is how often interfaces are read without a call of SetSegments, in case one was missed.
	relistAfter = 10 * time.Second
)

// follow reads the interfaces when they may have changed, and probes nodes without a process. It runs alongside the
// loop, which must not wait for it.
func (d *Detector) follow(ctx context.Context, l *lister) {
	probe, relist := time.NewTicker(probeAfter), time.NewTicker(relistAfter)
	defer probe.Stop()
	defer relist.Stop()
	probes := true // the ticker runs: an idle process does not wake for it
	var names []string
	var failed string
	for {
		select {
		case <-ctx.Done():
			return
		case names = <-d.segments:
		case <-d.probing:
			if !probes {
				probes = true
				probe.Reset(probeAfter)
			}
			continue
		case <-probe.C:
			if probes = d.probeAway(l); !probes {
				probe.Stop()
			}
			continue
		case <-relist.C:
		}
		have, err := l.list(names)
		if err != nil {
			if failed != err.Error() {
				d.options.Log.Error("cannot list the interfaces for liveness; the previous list is used", "error", err)
			}
			failed = err.Error()
			continue
		}
		failed = ""
		d.put(func(in *inbox) { in.ports = &have })
	}
}

// loop is the goroutine that owns the core, with its resources.
type loop struct {
	polls         []unix.PollFd
	reads         []*socket // those in polls
	duplicateName bool      // another process with this node's name was reported
	// rejectionLogged is when a datagram with a wrong key was last logged.
	rejectionLogged time.Time
	watchdog
	scheduling
	*Detector
	lister   *lister
	sockets  []*socket // per family, for unicast and broadcast
	groups   groups
	arrivals arrivals
	// filterInput is the input of the current socket filters; counted is when the drop counters were last read.
	filterInput socketFilter
	counted     time.Time
	ports       ports
	// deferred are the sockets for routine heartbeats; droppedCopies are copies of accepted datagrams that the kernel
	// dropped at other sockets.
	deferred      []*socket
	droppedCopies int
	intake
	batch batch
	// retained is how long the node answers after the end; more fences than retainedFence cancel it.
	retained      time.Duration
	retainedFence uint64
	// slotsAt is when the digests of slots were last compared.
	slotsAt time.Time
}

// slotsEvery is the interval of comparisons of the digests of slots.
const slotsEvery = 500 * time.Millisecond

func (d *Detector) open() (*loop, error) {
	l := &loop{Detector: d}
	var err error
	if l.lister, err = newLister(); err != nil {
		return nil, err
	}
	for _, v6 := range []bool{false, true} {
		s, err := openSocket(d.options.Port, v6)
		if v6 && errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6
			continue
		}
		if err != nil {
			l.close()
			return nil, err
		}
		l.sockets = append(l.sockets, s)
		second, err := pair(s)
		if err != nil {
			d.options.Log.Warn("each heartbeat wakes the liveness thread, which costs CPU time", "error", err)
			continue
		}
		l.deferred = append(l.deferred, second)
	}
	l.attachFilters()
	return l, nil
}

func (l *loop) close() {
	l.groups.close()
	for _, s := range slices.Concat(l.sockets, l.deferred) {
		s.close()
	}
	l.lister.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	unix.Close(l.wake)
	l.wake = -1
}

// iterate waits for work, reads all that has arrived, and runs the core.
func (l *loop) iterate() error {
	if err := l.wait(); err != nil {
		return err
	}
	before := l.core.Counts()
	l.applyInbox()
	l.receive()
	now := time.Now()
	if l.core.Urgent() || !now.Before(l.core.Next()) {
		if late := now.Sub(l.core.Next()); late >= 0 && l.core.begun {
			l.metrics.late(late)
		}
		l.raise(now)
		wedged := l.watch(now)
		l.send(l.core.Tick(now, raw()))
		l.checkAway()
		switch after := l.core.Counts(); {
		case after.ClockStops != before.ClockStops:
			l.stalled(now, ClockStopped, "the clock of this node stopped, as when a virtual machine is paused")
		case after.Fences != before.Fences && !wedged:
			l.stalled(now, LivenessLoopStalled, "liveness loop stalled",
				"for", now.Sub(l.start)-time.Duration(l.heartbeat.Load()), "limit", l.core.FenceAfter())
		}
		l.fenced.Store(l.core.Fenced())
		l.limit.Store(int64(l.core.FenceAfter()))
		l.heartbeat.Store(int64(l.core.LastHeartbeat().Sub(l.start)))
	}
	l.count(now)
	l.publish()
	return nil
}

// wait returns when a datagram is to be read at once, a method was called, or the core's next tick is due.
func (l *loop) wait() error {
	fds := append(l.polls[:0], unix.PollFd{Fd: int32(l.wake), Events: unix.POLLIN})
	l.reads = append(append(l.reads[:0], l.groups.sockets...), l.sockets...) // the segments have priority
	l.reads = append(l.reads, l.deferred...)
	all := l.busy || l.core.Attentive()
	for _, s := range l.reads {
		fd := int32(s.fd)
		if !all && (s.deferred || s.index != 0) {
			fd = -1 // not polled
		}
		fds = append(fds, unix.PollFd{Fd: fd, Events: unix.POLLIN})
	}
	l.polls = fds
	if err := ppoll.Wait(fds, max(0, time.Until(l.core.Next()))); err != nil {
		return fmt.Errorf("wait for the speakers' datagrams: %w", err)
	}
	l.polled = time.Now()
	l.metrics.wakes.Inc()
	if fds[0].Revents != 0 {
		var counter [8]byte
		_, _ = unix.Read(l.wake, counter[:])
	}
	return nil
}

// applyInbox passes the inbox to the core.
func (l *loop) applyInbox() {
	l.mu.Lock()
	in := l.in
	l.in = inbox{}
	l.mu.Unlock()
	if in.ports != nil {
		l.ports = *in.ports
		l.join()
		l.attachFilters()
		links := make([]Link, 0, len(l.ports.byName))
		for _, p := range l.ports.byName {
			if p.up {
				links = append(links, p.link)
			}
		}
		slices.SortFunc(links, func(a, b Link) int {
			if a.Name < b.Name {
				return -1
			}
			return 1
		})
		l.core.SetLinks(time.Now(), links)
	}
	if in.peers != nil {
		l.core.SetPeers(in.peers)
	}
	if in.authorities != nil {
		l.core.SetAuthorities(in.authorities)
	}
	if in.keys != nil {
		_ = l.core.SetKeys(in.keys) // checked by Detector.SetKeys
		l.attachFilters()
	}
	if in.retained > 0 {
		l.retained, l.retainedFence = in.retained, in.retainedFence
	}
	if in.slots != nil {
		l.core.SetSlots(*in.slots)
	}
	if in.settled {
		l.core.Settled()
	}
	l.core.Answered(in.answered, in.silent)
	if in.answers != nil {
		l.core.SetAnswers(in.answers)
	}
	if in.published != nil && in.fence == l.core.Fences() {
		l.core.Publish(*in.published)
		l.fenced.Store(false)
	}
}

// publish stores what has changed for Observe, and wakes the reconcile loop by Wake.
func (l *loop) publish() {
	if l.core.out.macs {
		macs := l.core.MACs()
		l.macs.Store(&macs)
		l.core.out.macs = false
	}
	if now := l.core.lastTick; now.Sub(l.slotsAt) >= slotsEvery {
		slots := l.core.Slots()
		l.slots.Store(&slots)
		l.slotsAt = now
	}
	l.metrics.counts(l.core)
	if now, changed := l.core.Received(); changed && l.options.Received != nil {
		l.options.Received(now)
	}
	if !l.core.Changed() {
		return
	}
	members, nodes, vips := l.core.collect()
	l.metrics.members(members)
	l.mu.Lock()
	l.results.members, l.results.fences = members, l.core.Fences()
	merge(l.results.nodes, nodes)
	merge(l.results.vips, vips)
	l.mu.Unlock()
	l.options.Wake()
}

func merge[K comparable](into, from map[K]struct{}) {
	for k := range from {
		into[k] = struct{}{}
	}
}
