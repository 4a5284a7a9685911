package reach

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/ppoll"
	"github.com/ironlb/ironlb/speaker/view"
)

// Options configure a Prober.
type Options struct {
	Log *slog.Logger
	// Wake is called when the result of State has changed. It must not block.
	Wake    func()
	Metrics *Metrics
	// MACs returns the hardware addresses of other nodes with their names. An answer to ARP or neighbor discovery from
	// a node with such addresses counts only if it comes from one of them.
	MACs func() map[[6]byte]string
	// Silent is called from Run, at its start and when that part of State has changed. It must not block. May be nil.
	Silent func(interfaces map[string]view.Answers)
}

// Prober runs a Core on sockets. One goroutine owns the Core; the methods do not wait for it.
type Prober struct {
	options   Options
	core      *Core
	sockets   []*echo
	neighbors *neighbors
	wake      int // eventfd
	state     atomic.Pointer[view.Reachability]
	// names are the nodes by their addresses.
	names map[netip.Addr]string
	// failed is the last error of a socket, for the log.
	failed string

	mu sync.Mutex
	in inbox
}

// inbox is the input of the methods since the last iteration of Run.
type inbox struct {
	nodes       map[string][]netip.Addr // nil: unchanged
	gateways    *[]netip.Addr
	received    map[string]struct{}
	observer    bool
	silent      map[string]time.Time
	receivedSet bool // received, observer and silent have changed
}

// Metrics count probes, answers, and nodes that became unreachable.
type Metrics struct {
	probes, answers *prometheus.CounterVec
	unreachable     prometheus.Counter
}

// New opens the sockets, in the network namespace of the calling thread. Call Run once.
func New(o Options) (*Prober, error) {
	var token [8]byte
	_, _ = rand.Read(token[:]) // never fails
	p := &Prober{options: o, core: NewCore(), names: map[netip.Addr]string{}, wake: -1}
	state := p.core.State()
	p.state.Store(&state)
	err := p.open(binary.BigEndian.Uint64(token[:]))
	if err != nil {
		p.close()
		return nil, fmt.Errorf("find unreachable nodes: %w", err)
	}
	return p, nil
}

func (p *Prober) open(token uint64) (err error) {
	if p.wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return fmt.Errorf("make an eventfd: %w", err)
	}
	for _, v6 := range []bool{false, true} {
		e, err := openEcho(v6, token)
		if err != nil {
			return err
		}
		if e != nil {
			p.sockets = append(p.sockets, e)
		}
	}
	p.neighbors, err = openNeighbors(p.accepts)
	return err
}

func (p *Prober) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.sockets {
		e.close()
	}
	if p.neighbors != nil {
		p.neighbors.Close()
	}
	if p.wake >= 0 {
		unix.Close(p.wake)
		p.wake = -1
	}
}

// SetNodes sets the other nodes with their InternalIPs. The map must not change afterwards.
func (p *Prober) SetNodes(nodes map[string][]netip.Addr) { p.put(func(in *inbox) { in.nodes = nodes }) }

// SetGateways sets the next-hop addresses of this node.
func (p *Prober) SetGateways(gateways []netip.Addr) {
	p.put(func(in *inbox) { in.gateways = &gateways })
}

// SetReceived sets the nodes whose speakers are received, and the interfaces on which none is since when; see
// Core.SetReceived and Core.SetSilent. The maps must not change afterwards.
func (p *Prober) SetReceived(nodes map[string]struct{}, observer bool, silent map[string]time.Time) {
	p.put(func(in *inbox) { in.received, in.observer, in.silent, in.receivedSet = nodes, observer, silent, true })
}

// State returns the current result. It does not change afterwards.
func (p *Prober) State() view.Reachability { return *p.state.Load() }

func (p *Prober) put(f func(*inbox)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.in)
	if p.wake >= 0 { // Run has not ended
		one := binary.NativeEndian.AppendUint64(nil, 1)
		_, _ = unix.Write(p.wake, one) // full only while a wake-up is pending
	}
}

// Run probes and evaluates until the context ends, and closes the sockets.
func (p *Prober) Run(ctx context.Context) error {
	defer p.close()
	defer context.AfterFunc(ctx, func() { p.put(func(*inbox) {}) })()
	if p.options.Silent != nil {
		p.options.Silent(p.State().Silent)
	}
	for ctx.Err() == nil {
		p.take()
		p.receive()
		for _, q := range p.core.Tick(time.Now()) {
			p.options.Metrics.probes.WithLabelValues(string(q.By)).Inc()
			if sent, err := p.send(q); !sent {
				p.core.Unsent(q)
				p.fail(err)
			}
		}
		p.publish()
		if err := p.wait(); err != nil {
			return err
		}
	}
	return nil
}

// take passes the inbox to the Core.
func (p *Prober) take() {
	p.mu.Lock()
	in := p.in
	p.in = inbox{}
	p.mu.Unlock()
	now := time.Now()
	if in.nodes != nil {
		clear(p.names)
		nodes := map[string][]Target{}
		for name, addrs := range in.nodes {
			nodes[name] = targets(addrs)
			for _, a := range addrs {
				p.names[a] = name
			}
		}
		maps.DeleteFunc(p.neighbors.silent, func(a netip.Addr, _ int) bool { return p.names[a] == "" })
		p.core.SetNodes(now, nodes)
	}
	if in.gateways != nil {
		p.core.SetGateways(now, targets(*in.gateways))
	}
	if in.receivedSet {
		p.core.SetReceived(now, in.received, in.observer)
		p.core.SetSilent(now, in.silent, func(name string) []Target {
			found, err := p.neighbors.Hosts(name, p.isNode)
			p.fail(err)
			return targets(found)
		})
	}
}

func targets(addrs []netip.Addr) (out []Target) {
	for _, a := range addrs {
		out = append(out, Target{a, view.WitnessEcho}, Target{a, view.WitnessNeighbor})
	}
	return out
}

// receive reads all answers that have arrived.
func (p *Prober) receive() {
	take := func(at time.Time, q Probe) {
		p.options.Metrics.answers.WithLabelValues(string(q.By)).Inc()
		p.core.Answered(at, q)
	}
	for _, e := range p.sockets {
		p.fail(e.answers(take))
	}
	p.fail(p.neighbors.answers(take))
}

// send reports whether a probe was sent.
func (p *Prober) send(q Probe) (sent bool, err error) {
	if q.By == view.WitnessNeighbor {
		return p.neighbors.send(q)
	}
	for _, e := range p.sockets {
		if e.v6 == q.Addr.Is6() {
			return e.send(q)
		}
	}
	return false, nil // the kernel has no IPv6
}

// accepts reports whether a node may have a hardware address, according to its recorded addresses.
func (p *Prober) accepts(addr netip.Addr, mac [6]byte) bool {
	name, isNode := p.names[addr]
	if !isNode || p.options.MACs == nil {
		return true
	}
	macs := p.options.MACs()
	if owner, known := macs[mac]; known {
		return owner == name
	}
	return !slices.Contains(slices.Collect(maps.Values(macs)), name)
}

// isNode reports whether a neighbor is another node.
func (p *Prober) isNode(addr netip.Addr, mac [6]byte) bool {
	if _, is := p.names[addr]; is || p.options.MACs == nil {
		return is
	}
	_, is := p.options.MACs()[mac]
	return is
}

// fail logs an error when it appears or changes.
func (p *Prober) fail(err error) {
	if err != nil && err.Error() != p.failed {
		p.failed = err.Error()
		p.options.Log.Error("cannot probe nodes; their endpoints are left to Kubernetes", "error", err)
	}
}

// wait returns when a method was called, an answer has arrived, or the Core is due.
func (p *Prober) wait() error {
	fds := []unix.PollFd{{Fd: int32(p.wake), Events: unix.POLLIN}}
	for _, e := range p.sockets {
		fds = append(fds, unix.PollFd{Fd: int32(e.fd), Events: unix.POLLIN})
	}
	if err := ppoll.Wait(fds, max(0, time.Until(p.core.Next()))); err != nil {
		return fmt.Errorf("wait for answers of nodes: %w", err)
	}
	if fds[0].Revents != 0 {
		var counter [8]byte
		_, _ = unix.Read(p.wake, counter[:])
	}
	return nil
}

// publish publishes a changed state and logs the changes.
func (p *Prober) publish() {
	before, now := p.State(), p.core.State()
	if equal(before, now) {
		return
	}
	p.state.Store(&now)
	for _, name := range slices.Sorted(maps.Keys(now.Unreachable)) {
		u := now.Unreachable[name]
		if have, was := before.Unreachable[name]; was && have.Since.Equal(u.Since) {
			continue
		}
		args := []any{"node", name, "silent", fmt.Sprint(u.Silent)}
		if u.Gateway.IsValid() {
			args = append(args, "gateway", u.Gateway)
		}
		p.options.Log.Warn("node is unreachable", args...)
		p.options.Metrics.unreachable.Inc()
	}
	for _, name := range slices.Sorted(maps.Keys(before.Unreachable)) {
		if _, still := now.Unreachable[name]; !still {
			p.options.Log.Info("node is reachable again", "node", name, "after", time.Since(before.Unreachable[name].Since).Round(time.Millisecond))
		}
	}
	switch {
	case now.CutOff && !before.CutOff:
		p.options.Log.Warn("this node may be cut off: nodes are silent, and no other host answers; reachability is unchanged")
	case before.CutOff && !now.CutOff:
		p.options.Log.Info("this node is not cut off")
	}
	for _, name := range slices.Sorted(maps.Keys(now.Unwitnessed)) {
		if _, was := before.Unwitnessed[name]; !was {
			p.options.Log.Warn("node answers neither ICMP echo nor ARP: its death is detected by Kubernetes only", "node", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now.Silent)) {
		if now.Silent[name].None && !before.Silent[name].None {
			p.options.Log.Warn("no speaker is received and no host answers: this node is cut off", "interface", name)
		}
	}
	if p.options.Silent != nil && !maps.Equal(before.Silent, now.Silent) {
		p.options.Silent(now.Silent)
	}
	p.options.Wake()
}

// NewMetrics returns the metrics, registered with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_probes_total",
			Help: "Probes of the kernels of other nodes and of gateways, by witness: ICMPEcho or Neighbor (ARP, neighbor discovery).",
		}, []string{"witness"}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_answers_total",
			Help: "Answers to these probes, by witness.",
		}, []string{"witness"}),
		unreachable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_nodes_total",
			Help: "How often a node became unreachable.",
		}),
	}
	for _, w := range []view.Witness{view.WitnessEcho, view.WitnessNeighbor} {
		m.probes.WithLabelValues(string(w))
		m.answers.WithLabelValues(string(w))
	}
	r.MustRegister(m.probes, m.answers, m.unreachable)
	return m
}
