package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// fixtureDetector receives node b. While alive, b owns every VirtualIP that lists it first, unless a test overrides
// that.
type fixtureDetector struct {
	f       *fixture
	view    func() *view.View
	trigger *Trigger

	mu         sync.Mutex
	dead       bool // b
	observer   bool // this node
	fences     uint64
	begins     bool // b observes
	notDirect  bool // b cannot use tunnels
	asymmetric bool // b receives nothing from this node; c exists then and does
	override   map[string]view.Claim
	last       view.Members
	states     []view.LocalState
	segments   []string
	peers      map[string][]netip.Addr
	retained   time.Duration
	deadTime   time.Duration
	settled    int
	slots      []uint64 // published digests
	otherSlots uint64   // that of b; 0: the same
	onPeers    func()   // called by SetPeers, in the middle of a reconcile
}

func (d *fixtureDetector) Observe() (view.Members, map[string]struct{}, map[view.VIPID]struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := view.Member{Alive: !d.dead, Observer: d.begins, Synced: true, Direct: !d.notDirect, On: map[string]struct{}{}, Claims: map[view.VIPID]view.Claim{}}
	if m.Alive {
		m.On["eth0"] = struct{}{}
	}
	others := map[string]view.Member{}
	if d.asymmetric {
		m.Asymmetric = map[string]struct{}{"eth0": {}}
		others["c"] = view.Member{Alive: true, Synced: true, On: map[string]struct{}{"eth0": {}}}
	}
	for name, vip := range d.view().VIPs {
		if len(vip.Nodes) > 0 && vip.Nodes[0] == "b" {
			m.Claims[view.IDOf(name)] = view.Claim{State: view.Held, Generation: vip.Generation}
		}
	}
	for name, c := range d.override {
		m.Claims[view.IDOf(name)] = c
	}
	before := d.last.Peers["b"]
	nodes, claims := map[string]struct{}{}, map[view.VIPID]struct{}{}
	for _, set := range []map[view.VIPID]view.Claim{before.Claims, m.Claims} {
		for id := range set {
			if before.Claims[id] != m.Claims[id] {
				claims[id] = struct{}{}
			}
		}
	}
	if before.Alive != m.Alive || before.Observer != m.Observer || before.Direct != m.Direct || len(before.Asymmetric) != len(m.Asymmetric) {
		nodes["b"] = struct{}{}
	}
	if d.last.Observer != d.observer {
		nodes["a"] = struct{}{}
	}
	d.last = view.Members{Observer: d.observer, Fences: d.fences, Dead: d.deadTime, Peers: others}
	others["b"] = m
	return d.last, nodes, claims
}

func (d *fixtureDetector) Publish(w view.LocalState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states = append(d.states, w)
	d.f.checkState(w)
}

func (d *fixtureDetector) Retain(lifetime time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.retained = lifetime
}

func (d *fixtureDetector) Settled() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settled++
}

func (d *fixtureDetector) CompareSlots(digest uint64) map[string]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slots = append(d.slots, digest)
	if d.otherSlots == 0 {
		return nil
	}
	return map[string]uint64{"b": d.otherSlots}
}

func (d *fixtureDetector) SetSegments(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.segments = slices.Clone(names)
}

func (d *fixtureDetector) SetPeers(peers map[string][]netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.peers = maps.Clone(peers)
	if d.onPeers != nil {
		d.onPeers()
	}
}

// set changes the observed members.
func (d *fixtureDetector) set(change func(*fixtureDetector)) {
	d.mu.Lock()
	change(d)
	d.mu.Unlock()
	d.trigger.Now()
}

// state returns the last published state.
func (d *fixtureDetector) state() view.LocalState {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.states) == 0 {
		return view.LocalState{}
	}
	return d.states[len(d.states)-1]
}

// checkState checks that every announced address is claimed and every claimed address is forwarded.
func (f *fixture) checkState(state view.LocalState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for addr, ann := range f.announced {
		if c := state.Claims[ann.VIP]; c.State != view.Held && c.State != view.HandingOver {
			f.wrong("address %v is answered for while the published claim is %+v", addr, c)
		}
	}
	for vip, c := range state.Claims {
		if addr, err := netip.ParseAddr(vip); err == nil && c.State == view.Held {
			f.checkForwards(addr)
		}
	}
}
