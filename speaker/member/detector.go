package member

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
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
	away     chan []Neighbor                   // to be probed
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
		away: make(chan []Neighbor, 1), segments: make(chan []string, 1)}
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
	replace(d.segments, slices.Clone(names))
}

// replace sends to a channel of size one, in place of what has not been received yet.
func replace[T any](c chan T, v T) {
	for {
		select {
		case c <- v:
			return
		case <-c:
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

const (
	// probeAfter is how often nodes without a process are probed.
	probeAfter = time.Second
	// relistAfter is how often interfaces are read without a call of SetSegments, in case one was missed.
	relistAfter = 10 * time.Second
)

// follow reads the interfaces when they may have changed, and probes nodes without a process. It runs alongside the
// loop, which must not wait for it.
func (d *Detector) follow(ctx context.Context, l *lister) {
	relist := time.NewTicker(relistAfter)
	defer relist.Stop()
	var away []Neighbor
	var probe <-chan time.Time // nil while there are none: an idle process does not wake for it
	var names []string
	var failed string
	for {
		select {
		case <-ctx.Done():
			return
		case names = <-d.segments:
		case away = <-d.away:
			if len(away) == 0 {
				probe, l.probed = nil, nil
			} else if probe == nil {
				probe = time.After(probeAfter)
			}
			continue
		case <-probe:
			d.probeAway(l, away)
			probe = time.After(probeAfter)
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
