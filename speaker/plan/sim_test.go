package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/view"
)

// simulation is a cluster of speakers without a network. State published by one speaker reaches the others with a
// delay, or not at all over a failed link. It has its own clock.
type simulation struct {
	t     *testing.T
	r     *rand.Rand
	now   time.Time
	api   *view.View
	nodes []*simNode
	log   []string
	// second is set if the nodes have a second segment, on which the addresses are announced as well.
	second bool
}

// simNode is a node of a simulation.
type simNode struct {
	sim     *simulation
	name    string
	view    *view.View
	planner *Planner
	desired *Desired
	// cut is set while its link to the second segment fails, with the carrier up.
	cut bool
	// up is unset while it is dead, api while it does not reach the API server.
	up, api bool
	// joins is when it ceases to be an observer.
	joins time.Time
	// asymmetric are the nodes that it does not receive; received is when it last received each node.
	asymmetric map[string]bool
	received   map[string]time.Time
	peer       map[string]view.Member
	touched    view.Touched
}

const (
	simTick = 10 * time.Millisecond
	simDead = 450 * time.Millisecond
)

func newSimulation(t *testing.T, seed uint64, nodes, vips int) *simulation {
	s := &simulation{t: t, r: rand.New(rand.NewPCG(seed, 9)), now: time.Unix(1000, 0), api: view.New()}
	s.api.Advertisements["all"] = view.Advertisement{}
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprint("n", i))
		s.api.Nodes[names[i]] = view.Node{Ready: true}
	}
	for i := range vips {
		key := pools.ServiceKey{Namespace: "default", Name: fmt.Sprint("s", i)}
		addr := netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i)})
		s.api.Services[key] = view.Service{Addresses: []view.Address{{IP: addr, Pool: "main"}}, Ports: []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 80}}}
		s.api.VIPs[addr.String()] = view.VIP{Addresses: []netip.Addr{addr}, Services: []pools.ServiceKey{key}, Nodes: s.order(names), Generation: 1}
	}
	for _, name := range names {
		n := &simNode{sim: s, name: name, asymmetric: map[string]bool{}}
		s.nodes = append(s.nodes, n)
		n.start()
	}
	return s
}

// order returns the names in random order.
func (s *simulation) order(names []string) []string {
	out := slices.Clone(names)
	s.r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func (n *simNode) start() {
	n.up, n.api, n.planner, n.desired = true, true, NewPlanner(Options{Node: n.name}), nil
	n.view = frozen(n.sim.api)
	n.view.Links = map[string]view.Link{"eth0": {Name: "eth0", Subnets: prefixes("203.0.113.0/24")}}
	if n.sim.second {
		n.view.Links["eth1"] = view.Link{Name: "eth1", Subnets: prefixes("203.0.113.0/24")}
	}
	n.joins = n.sim.now.Add(simDead + time.Duration(n.sim.r.IntN(100))*time.Millisecond)
	n.view.Members.Observer = true
	n.peer, n.received, n.touched = map[string]view.Member{}, map[string]time.Time{}, view.Touched{All: true}
}

// stop makes the node hand over what it owns.
func (n *simNode) stop() { n.view.Leaving, n.touched.All = true, true }

// receives reports whether a node receives another one now.
func (n *simNode) receives(m *simNode) bool {
	return n.up && m.up && !n.asymmetric[m.name]
}

// run advances the time and lets every node act on each tick.
func (s *simulation) run(d time.Duration) {
	for until := s.now.Add(d); s.now.Before(until); s.now = s.now.Add(simTick) {
		for _, i := range s.r.Perm(len(s.nodes)) {
			s.nodes[i].tick()
		}
	}
}

// tick is one tick of a node's detector and loop.
func (n *simNode) tick() {
	if !n.up {
		return
	}
	s := n.sim
	nodes, claims := map[string]struct{}{}, map[view.VIPID]struct{}{}
	for _, m := range s.nodes {
		if m != n {
			n.listen(m, nodes, claims)
		}
	}
	v := n.view
	v.Members.Peers = maps.Clone(n.peer)
	if v.Members.Observer && !s.now.Before(n.joins) {
		v.Members.Observer = false
		nodes[n.name] = struct{}{}
	}
	if isolated := n.isolated(); !maps.Equal(isolated, v.Members.Isolated) {
		v.Members.Isolated = isolated
		nodes[n.name] = struct{}{}
	}
	n.touched.Members, n.touched.Claims = nodes, claims
	wake := n.planner.Wake()
	if n.desired != nil && !n.touched.Any() && (wake.IsZero() || wake.After(s.now)) {
		return
	}
	before := map[string]view.Claim{}
	if n.desired != nil {
		before = maps.Clone(n.desired.Claims)
	}
	n.desired, _ = n.planner.Plan(v, n.touched, s.now)
	n.touched = view.Touched{}
	if !maps.Equal(before, n.desired.Claims) {
		s.log = append(s.log, fmt.Sprintf("%v %s claims %v", s.now.Sub(time.Unix(1000, 0)), n.name, n.desired.Claims))
	}
}

// isolated returns the second segment if this node is cut off from it and others are not.
func (n *simNode) isolated() map[string]struct{} {
	others := 0
	for _, m := range n.sim.nodes {
		if m != n && m.up && !m.cut {
			others++
		}
	}
	if n.cut && others > 1 {
		return map[string]struct{}{"eth1": {}}
	}
	return nil
}

// listen updates a node's state of another one: claims with some delay, its death after the dead time.
func (n *simNode) listen(m *simNode, nodes map[string]struct{}, claims map[view.VIPID]struct{}) {
	s := n.sim
	before, known := n.peer[m.name]
	now := before
	switch {
	case n.receives(m):
		if m.desired == nil || s.r.IntN(5) > 0 && known && before.Alive { // a datagram arrives every 50 ms on average
			return
		}
		now = view.Member{Alive: true, Synced: true, Observer: m.view.Members.Observer, Leaving: m.view.Leaving, On: map[string]struct{}{"eth0": {}}, Claims: map[view.VIPID]view.Claim{}}
		for name, c := range m.desired.Claims {
			now.Claims[view.IDOf(name)] = c
		}
		if p, known := m.peer[n.name]; known && !p.Alive && !now.Observer {
			now.Asymmetric = maps.Clone(now.On)
		}
		if s.second && !n.cut && !m.cut {
			now.On["eth1"] = struct{}{}
		}
		n.received[m.name] = s.now
	case before.Alive && s.now.Sub(n.received[m.name]) > simDead:
		now.Alive, now.On, now.Asymmetric = false, nil, nil
	}
	reported := before.Observer != now.Observer || before.Leaving != now.Leaving || before.Synced != now.Synced
	if before.Alive != now.Alive || reported || len(before.Asymmetric) != len(now.Asymmetric) || len(before.On) != len(now.On) {
		nodes[m.name] = struct{}{}
	}
	for _, set := range []map[view.VIPID]view.Claim{before.Claims, now.Claims} {
		for id := range set {
			if before.Claims[id] != now.Claims[id] {
				claims[id] = struct{}{}
			}
		}
	}
	n.peer[m.name] = now
}

// owners returns the nodes that announce each VirtualIP.
func (s *simulation) owners() map[string][]string {
	out := map[string][]string{}
	for name := range s.api.VIPs {
		out[name] = nil
	}
	for _, n := range s.nodes {
		if !n.up || n.desired == nil {
			continue
		}
		for _, ann := range n.desired.Announce {
			out[ann.VIP] = append(out[ann.VIP], n.name)
		}
	}
	return out
}

// publish passes the API state to the nodes that reach the API server.
func (s *simulation) publish() {
	for _, n := range s.nodes {
		if !n.up || !n.api {
			continue
		}
		n.view.VIPs, n.view.Nodes = maps.Clone(s.api.VIPs), maps.Clone(s.api.Nodes)
		n.touched.All = true
	}
}

// relist sets a new node list for a VirtualIP.
func (s *simulation) relist(name string, nodes []string) {
	vip := s.api.VIPs[name]
	vip.Nodes, vip.Generation = nodes, vip.Generation+1
	s.api.VIPs[name] = vip
	s.publish()
}

// fault makes a random change to one node.
func (s *simulation) fault() string {
	n := one(s.r, s.nodes...)
	other := one(s.r, s.nodes...)
	name := one(s.r, slices.Sorted(maps.Keys(s.api.VIPs))...)
	switch s.r.IntN(9) {
	case 0:
		n.up = false
		return n.name + " dies"
	case 1:
		if !n.up {
			n.start()
			return n.name + " returns"
		}
	case 2:
		if n != other {
			n.asymmetric[other.name] = true
			return n.name + " does not receive " + other.name
		}
	case 3:
		if n != other {
			n.asymmetric[other.name], other.asymmetric[n.name] = true, true
			return n.name + " and " + other.name + " do not receive each other"
		}
	case 4:
		clear(n.asymmetric)
		return n.name + " receives all"
	case 5:
		n.api = false
		return n.name + " loses the API server"
	case 6:
		n.api = true
		s.publish()
		return n.name + " has the API server"
	case 7:
		nodes := s.order(slices.Sorted(maps.Keys(s.api.Nodes)))
		s.relist(name, nodes)
		return fmt.Sprintf("%s lists %v", name, nodes)
	case 8:
		if n.up {
			n.stop()
			return n.name + " is stopped"
		}
	}
	return ""
}

// heal repairs everything.
func (s *simulation) heal() {
	for _, n := range s.nodes {
		clear(n.asymmetric)
		if !n.up || n.view.Leaving {
			n.start()
		}
		n.api = true
	}
	s.publish()
}

// wantOne checks that each VirtualIP has exactly one owner.
func (s *simulation) wantOne(when string) {
	s.t.Helper()
	for name, nodes := range s.owners() {
		if len(nodes) != 1 {
			s.t.Errorf("%s: %v answer for %s", when, nodes, name)
		}
	}
	if s.t.Failed() {
		for _, line := range s.log[max(0, len(s.log)-60):] {
			s.t.Log(line)
		}
		s.t.FailNow()
	}
}

// bound is the maximum time until each VirtualIP has one owner in a healthy cluster: a starting node observes, each
// node before it in rank is waited for one second, and so is each handover without success.
func (s *simulation) bound() time.Duration {
	return simDead + time.Duration(2*len(s.nodes))*time.Second
}

// After any faults, once the cluster is healthy again, each VirtualIP has exactly one owner and keeps it.
func TestClusterConverges(t *testing.T) {
	for seed := range uint64(25) {
		s := newSimulation(t, seed, 2+int(seed%4), 3)
		s.run(s.bound())
		s.wantOne(fmt.Sprintf("seed %d, at the start", seed))
		for range 6 {
			for range 1 + s.r.IntN(8) {
				s.log = append(s.log, fmt.Sprintf("%v %s", s.now.Sub(time.Unix(1000, 0)), s.fault()))
				s.run(time.Duration(s.r.IntN(1500)) * time.Millisecond)
			}
			s.log = append(s.log, "healed")
			s.heal()
			s.run(s.bound())
			s.wantOne(fmt.Sprintf("seed %d, healed", seed))
			before := s.owners()
			s.run(3 * time.Second)
			if after := s.owners(); !maps.EqualFunc(before, after, slices.Equal) {
				t.Fatalf("seed %d: owners %v, later %v", seed, before, after)
			}
		}
	}
}

// A dead node is replaced shortly after its dead time. Meanwhile no VirtualIP has two owners, and nothing moves when
// the node returns.
func TestClusterLosesOne(t *testing.T) {
	for seed := range uint64(25) {
		s := newSimulation(t, seed, 3+int(seed%3), 6)
		s.run(s.bound())
		s.wantOne("at the start")
		dead := one(s.r, s.nodes...)
		dead.up = false
		died := s.now
		for until := died.Add(2 * time.Second); s.now.Before(until); {
			s.run(simTick)
			for name, nodes := range s.owners() {
				if len(nodes) > 1 {
					t.Fatalf("seed %d: %v answer for %s", seed, nodes, name)
				}
				if late := s.now.Sub(died); len(nodes) == 0 && late > simDead+400*time.Millisecond {
					t.Fatalf("seed %d: no node answers for %s after %v", seed, name, late)
				}
			}
		}
		before := s.owners()
		dead.start()
		s.run(5 * time.Second)
		if after := s.owners(); !maps.EqualFunc(before, after, slices.Equal) {
			t.Fatalf("seed %d: owners %v, after the return %v", seed, before, after)
		}
	}
}

// Two nodes with an asymmetric link end up with one owner, either of them, during the fault and after it.
func TestClusterAsymmetricLink(t *testing.T) {
	for seed := range uint64(25) {
		s := newSimulation(t, seed, 2, 6)
		s.run(s.bound())
		s.wantOne("at the start")
		a, b := s.nodes[0], s.nodes[1]
		a.asymmetric[b.name] = true
		s.run(simDead + ownership.AsymmetricWait + time.Second)
		s.wantOne(fmt.Sprintf("seed %d, one way", seed))
		before := s.owners()
		s.run(3 * time.Second)
		clear(a.asymmetric)
		s.run(3 * time.Second)
		if after := s.owners(); !maps.EqualFunc(before, after, slices.Equal) {
			t.Fatalf("seed %d: owners %v, later %v", seed, before, after)
		}
		// The link fails in both directions, then in one, then recovers: the last step takes less than a second.
		for _, step := range []map[string]bool{{b.name: true}, {}} {
			a.asymmetric, b.asymmetric = maps.Clone(step), map[string]bool{a.name: true}
			s.run(time.Duration(500+s.r.IntN(5000)) * time.Millisecond)
		}
		clear(b.asymmetric)
		s.run(time.Second)
		s.wantOne(fmt.Sprintf("seed %d, healed", seed))
	}
}

// While a node leaves, or a list puts another node first, each VirtualIP always has an owner.
func TestClusterHandsOver(t *testing.T) {
	for seed := range uint64(25) {
		s := newSimulation(t, seed, 3+int(seed%3), 6)
		s.run(s.bound())
		s.wantOne("at the start")
		gone := one(s.r, s.nodes...)
		if seed%2 == 0 {
			gone.stop()
		} else {
			for name := range s.api.VIPs {
				s.relist(name, s.order(slices.Sorted(maps.Keys(s.api.Nodes))))
			}
		}
		for until := s.now.Add(6 * time.Second); s.now.Before(until); {
			s.run(simTick)
			for name, nodes := range s.owners() {
				if len(nodes) == 0 || len(nodes) > 2 {
					t.Fatalf("seed %d: %v answer for %s", seed, nodes, name)
				}
			}
		}
		s.wantOne("after")
		for name, nodes := range s.owners() {
			if want := s.api.VIPs[name].Nodes[0]; seed%2 == 0 && nodes[0] == gone.name || seed%2 == 1 && nodes[0] != want {
				t.Errorf("seed %d: %v answer for %s", seed, nodes, name)
			}
		}
	}
}
