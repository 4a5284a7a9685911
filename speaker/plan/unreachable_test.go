package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/view"
)

// An unreachable node moves connections and nothing else: announcements, answers and reports are the same as if it was
// reachable. A client that had an endpoint keeps one, and is sent to an unreachable node only without an alternative.
func TestUnreachableMovesConnectionsAlone(t *testing.T) {
	var seen struct{ moved, open, reset int }
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 14))
		v, p, now := view.New(), NewPlanner(randomOptions(r, "n1")), time.Unix(0, 0)
		p.Plan(v, view.Touched{All: true}, now)
		for i, s := range oftenUnreachable(r, 120) {
			now = now.Add(one(r, 0, time.Second, 10*time.Second, time.Minute))
			touched := s.apply(v)
			reachable, without := *v, p.Restart()
			reachable.Unreachable = nil
			d, _ := p.Plan(v, touched, now)
			other, _ := without.Plan(&reachable, view.Touched{All: true}, now)
			if got, want := unmoved(d), unmoved(other); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d: with unreachable nodes\n%s\nwithout\n%s", seed, i, text(d), text(other))
			}
			for c := range other.Checks {
				if _, continues := d.Checks[c]; c.Path != "" && !continues {
					t.Fatalf("seed %d, step %d: %+v has ended", seed, i, c)
				}
			}
			for key := range d.Table {
				moved, open, err := comparePlans(v, p, d, other, key)
				if err != nil {
					t.Fatalf("seed %d, step %d, unreachable %v: %v\n%s\nwithout\n%s",
						seed, i, v.Unreachable, err, text(d), text(other))
				}
				seen.moved, seen.open = seen.moved+moved, seen.open+open
			}
			reset, err := compareLists(v, p, without, now)
			if err != nil {
				t.Fatalf("seed %d, step %d, unreachable %v: %v\n%s", seed, i, v.Unreachable, err, text(d))
			}
			seen.reset += reset
		}
	}
	if seen.moved < 1000 || seen.open < 300 || seen.reset < 300 {
		t.Errorf("too little was seen: %+v", seen)
	}
}

// oftenUnreachable returns steps that often make a node unreachable or reachable.
func oftenUnreachable(r *rand.Rand, n int) []step {
	steps := randomSteps(r, n)
	for i := range steps {
		if r.IntN(5) == 0 {
			steps[i].kind = 30
		}
	}
	return steps
}

// unmoved returns the part of a plan that must not depend on unreachable nodes.
func unmoved(d *Desired) Desired {
	out := *d
	out.Table, out.ClusterInternal, out.Unreachable = nil, nil, nil
	out.Direct.Virtuals, out.SlotsDigest = nil, 0 // slots are of the endpoints that take connections
	out.Services, out.Checks = nil, nil           // these follow from the endpoints that take connections
	out.Filter = maps.Clone(d.Filter)
	maps.DeleteFunc(out.Filter, func(e ipvs.Element, _ struct{}) bool {
		return e.Set == ipvs.Endpoints || e.Set == ipvs.Hairpin
	})
	return out
}

// comparePlans compares the real servers that take new connections with those of a plan in which all nodes are
// reachable. It counts the lists that differ, and those that fail open.
func comparePlans(v *view.View, p *Planner, d, other *Desired, key ipvs.Key) (moved, open int, err error) {
	of := d.ServicePorts[key].Service
	for _, tables := range [][2]ipvs.Table{{d.Table, other.Table}, {internalOf(d), internalOf(other)}} {
		got, want := takers(tables[0][key]), takers(tables[1][key])
		// Through the nodes there may be more: one with terminating endpoints, if the node of the ready ones cannot be
		// used.
		if len(got) == 0 && len(want) > 0 || len(got) > 0 && len(want) == 0 && v.Services[of].Forwarding == view.ToPod {
			return 0, 0, fmt.Errorf("%v is sent to %v, with all nodes reachable to %v", key, got, want)
		}
		if !slices.Equal(got, want) {
			moved++
		}
		reached := slices.ContainsFunc(want, func(at string) bool { return answersAt(v, of, at) == yes })
		silent := slices.IndexFunc(got, func(at string) bool { return answersAt(v, of, at) == no })
		if silent >= 0 && reached {
			return 0, 0, fmt.Errorf("%v is sent to %v which is unreachable, and could be to one of %v", key, got[silent], want)
		}
		if silent >= 0 {
			open++
		}
	}
	return moved, open, nil
}

// internalOf returns the virtual servers for clients inside the cluster.
func internalOf(d *Desired) ipvs.Table {
	out := maps.Clone(d.Table)
	maps.Copy(out, d.ClusterInternal)
	return out
}

type answer int

const (
	unclear answer = iota // several slices name different nodes for the address
	yes
	no
)

// answersAt reports whether a real server is on a node that n1 reaches, or is such a node.
func answersAt(v *view.View, of pools.ServiceKey, realServer string) answer {
	nodes := map[string]bool{}
	addr := netip.MustParseAddrPort(realServer).Addr()
	for i, name := range []string{"n0", "n1", "n2"} {
		if addr == nodeAddress(i, true) || addr == nodeAddress(i, false) {
			nodes[name] = true
		}
	}
	for _, slice := range v.Slices[of] {
		for _, e := range slice.Endpoints {
			if e.Addr == addr {
				nodes[e.Node] = true
			}
		}
	}
	if len(nodes) != 1 {
		return unclear
	}
	for name := range nodes {
		if _, is := v.Unreachable[name]; is && name != "n1" {
			return no
		}
	}
	return yes
}

// compareLists checks the lists of endpoints against a slow implementation of the rules and, if they fail open, against
// a plan without unreachable nodes. It counts the endpoints that are reset.
func compareLists(v *view.View, p, without *Planner, now time.Time) (reset int, err error) {
	for svc := range v.Services {
		others := without.forwarding.Lists(svc)
		for key, servers := range p.forwarding.Lists(svc) {
			if key.Local {
				continue // independent of unreachable nodes: see unmoved and comparePlans
			}
			c := comparison{v, p.options, now, key.Protocol, listed(v.Slices[svc], key)}
			n, err := c.compare(servers, others[key])
			if err != nil {
				return 0, fmt.Errorf("%v %+v: %w", svc, key, err)
			}
			reset += n
		}
	}
	return reset, nil
}

// comparison is the check of one list.
type comparison struct {
	view     *view.View
	options  Options
	now      time.Time
	protocol ipvs.Protocol
	from     map[netip.AddrPort]view.Endpoint
}

// compare compares a list with that of a plan in which all nodes are reachable.
func (c comparison) compare(servers, other map[netip.AddrPort]ipvs.RealServer) (reset int, err error) {
	ready, open := false, false
	silent := map[netip.AddrPort]time.Time{}
	for at, e := range c.from {
		since, is := c.view.Unreachable[e.Node]
		if !is || e.Node == "n1" {
			ready = ready || e.Ready
			continue
		}
		silent[at] = since
		open = open || servers[at].Weight > 0
	}
	switch {
	case open && ready:
		return 0, fmt.Errorf("unreachable endpoints listed with ready ones: %v", servers)
	case open && !maps.Equal(servers, other):
		return 0, fmt.Errorf("fails open and is %v, not %v", servers, other)
	case open:
		return 0, nil
	}
	for at, since := range silent {
		_, stays := servers[at]
		over := c.options.ResetAfter > 0 && !c.now.Before(since.Add(c.options.ResetAfter))
		switch {
		case stays && (over || c.protocol != ipvs.TCP):
			return 0, fmt.Errorf("%v is there at %v, and its node unreachable since %v", at, c.now, since)
		case !stays && over && c.from[at].Ready && c.protocol == ipvs.TCP:
			reset++
		}
	}
	return reset, nil
}

// listed returns the endpoints of a list, each from the slice that has precedence.
func listed(all map[string]view.Slice, key forwarding.ListKey) map[netip.AddrPort]view.Endpoint {
	best := map[netip.AddrPort]view.Endpoint{}
	for _, slice := range all {
		for _, port := range slice.Ports {
			if port.Name != key.Port || port.Protocol != key.Protocol {
				continue
			}
			for _, e := range slice.Endpoints {
				at := netip.AddrPortFrom(e.Addr, port.Port)
				if have, twice := best[at]; e.Addr.Is4() == key.IPv4 && (!twice || precedes(e, have)) {
					best[at] = e
				}
			}
		}
	}
	return best
}

// precedes reports whether an entry of a slice precedes that of another one for the same endpoint.
func precedes(e, f view.Endpoint) bool {
	order := func(e view.Endpoint) string {
		return fmt.Sprint(e.Terminating, !e.Ready, !e.Serving, e.Node, e.ForNodes, e.ForZones)
	}
	return order(e) < order(f)
}

// spread returns a View of Services with one port, four endpoints on successive nodes, and a VirtualIP each.
func spread(services, nodes int) *view.View {
	v := view.New()
	v.Links["eth0"] = view.Link{Name: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}}
	v.Advertisements["all"] = view.Advertisement{}
	for i := range nodes {
		v.Nodes[nodeName(i)] = view.Node{Addresses: []netip.Addr{numbered(3, i)}}
	}
	for i := range services {
		key := serviceKey(fmt.Sprint("default/s", i))
		v.Services[key] = view.Service{
			Addresses: []view.Address{{IP: numbered(1, i), Pool: "main"}},
			Ports:     []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 80, NodePort: 30080}},
		}
		v.VIPs[numbered(1, i).String()] = view.VIP{
			Addresses: []netip.Addr{numbered(1, i)}, Services: []pools.ServiceKey{key},
			Nodes: []string{nodeName(0), nodeName(i % nodes)},
		}
		slice := view.Slice{Ports: []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 8080}}}
		for j := range 4 {
			at := 4*i + j
			e := view.Endpoint{Addr: numbered(2, at), Node: nodeName(at % nodes), Ready: true, Serving: true}
			slice.Endpoints = append(slice.Endpoints, e)
		}
		v.Slices[key] = map[string]view.Slice{"s": slice}
	}
	return v
}

func nodeName(i int) string { return fmt.Sprint("node-", i) }

// usersOn returns the Services with an endpoint on a node.
func usersOn(v *view.View, node string) map[serviceName]struct{} {
	out := map[serviceName]struct{}{}
	for key, all := range v.Slices {
		if slices.ContainsFunc(all["s"].Endpoints, func(e view.Endpoint) bool { return e.Node == node }) {
			out[key] = struct{}{}
		}
	}
	return out
}

// A node that becomes unreachable or reachable, and the reset, plan only the Services with an endpoint there, also
// after endpoints moved and Services were deleted.
func TestUnreachablePlansItsServicesAlone(t *testing.T) {
	v, now := spread(200, 40), time.Unix(1000, 0)
	p := NewPlanner(Options{Node: "node-0", Options: forwarding.Options{ResetAfter: 10 * time.Second}})
	p.Plan(v, view.Touched{All: true}, now)
	planned := func(what string, touched view.Touched, want map[serviceName]struct{}) {
		t.Helper()
		d, c := p.Plan(v, touched, now)
		if !maps.Equal(c.Services, want) {
			t.Errorf("%s: planned %d Services, want %d: %v, not %v", what, len(c.Services), len(want), c.Services, want)
		}
		if n := d.Unreachable["node-7"].LeftOut; len(want) > 0 && n != len(usersOn(v, "node-7"))*len(v.Unreachable) {
			t.Errorf("%s: %d endpoints are left out", what, n)
		}
	}
	node := view.Touched{Unreachable: map[string]struct{}{"node-7": {}}}
	through := func(what string) {
		t.Helper()
		v.Unreachable["node-7"] = now
		planned(what+", unreachable", node, usersOn(v, "node-7"))
		if wake := p.Wake(); !wake.Equal(now.Add(10 * time.Second)) {
			t.Errorf("%s: to be planned again at %v, %v after the node became unreachable", what, wake, wake.Sub(now))
		}
		now = now.Add(9 * time.Second)
		planned(what+", before the reset", view.Touched{}, nil)
		now = now.Add(time.Second)
		planned(what+", reset", view.Touched{}, usersOn(v, "node-7"))
		planned(what+", after the reset", view.Touched{}, nil)
		delete(v.Unreachable, "node-7")
		planned(what+", reachable", node, usersOn(v, "node-7"))
		if wake := p.Wake(); !wake.IsZero() {
			t.Errorf("%s: to be planned again at %v", what, wake)
		}
	}
	through("at first")
	if n := len(usersOn(v, "node-7")); n != 20 {
		t.Fatalf("%d Services have an endpoint on node-7", n)
	}
	touched := view.Touched{Services: map[serviceName]struct{}{}}
	moved, gone := 0, 0
	for key := range usersOn(v, "node-7") {
		touched.Services[key] = struct{}{}
		if moved++; moved <= 5 {
			v.Slices[key] = map[string]view.Slice{"s": {}}
		} else if gone++; gone <= 5 {
			delete(v.Services, key)
			delete(v.Slices, key)
		}
	}
	p.Plan(v, touched, now)
	through("after some went")
	p.Plan(v, view.Touched{All: true}, now)
	through("after everything was planned again")
	planned("a node without endpoints", view.Touched{Unreachable: map[string]struct{}{"node-99": {}}}, nil)
	planned("this node", view.Touched{Unreachable: map[string]struct{}{"node-0": {}}}, nil)
}

// A Service that forwards through the nodes is planned for each node that it uses: with policy Cluster any, with policy
// Local those with an endpoint.
func TestUnreachablePlansWhatForwardsByWayOfIt(t *testing.T) {
	v, now := spread(3, 10), time.Unix(1000, 0)
	for i, svc := range []view.Service{{}, {Forwarding: view.ToNodePort}, {Forwarding: view.ToNodePort, Local: true}} {
		key := serviceKey(fmt.Sprint("default/s", i))
		svc.Addresses, svc.Ports = v.Services[key].Addresses, v.Services[key].Ports
		v.Services[key] = svc
	}
	p := NewPlanner(Options{Node: "node-0"})
	p.Plan(v, view.Touched{All: true}, now)
	for node, want := range map[int][]string{ // s0 has endpoints on 0 to 3, s1 on 4 to 7, s2 on 8, 9, 0 and 1
		1: {"default/s0", "default/s1", "default/s2"}, 3: {"default/s0", "default/s1"},
		5: {"default/s1"}, 9: {"default/s1", "default/s2"},
	} {
		v.Unreachable[nodeName(node)] = now
		_, c := p.Plan(v, view.Touched{Unreachable: map[string]struct{}{nodeName(node): {}}}, now)
		var got []string
		for key := range c.Services {
			got = append(got, key.String())
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("node-%d: planned %v, want %v", node, got, want)
		}
	}
}

// BenchmarkUnreachable measures the plans for the death and return of one node, with 5,000 Services of four endpoints.
func BenchmarkUnreachable(b *testing.B) {
	for _, nodes := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint("nodes=", nodes), func(b *testing.B) {
			v, now := spread(5000, nodes), time.Unix(1000, 0)
			p := NewPlanner(Options{Node: "node-0", Options: forwarding.Options{ResetAfter: 10 * time.Second}})
			p.Plan(v, view.Touched{All: true}, now)
			touched := view.Touched{Unreachable: map[string]struct{}{"node-7": {}}}
			for b.Loop() {
				v.Unreachable["node-7"] = now
				p.Plan(v, touched, now)
				delete(v.Unreachable, "node-7")
				p.Plan(v, touched, now)
			}
			b.ReportMetric(float64(5000*4/nodes), "endpoints")
		})
	}
}
