package plan

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// manyRouted returns a View of n Services with policy Local. Two peers receive each address; one of them also receives
// an aggregate of all.
func manyRouted(n int) *view.View {
	v := many(n)
	clear(v.VIPs)
	clear(v.Advertisements)
	v.Nodes["a"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("2001:db8:9::1")}}
	for name, as := range map[string]uint32{"r1": 65000, "r2": 65001} {
		v.BGPPeers[name] = view.BGPPeer{Address: netip.MustParseAddr("2001:db8:9::" + name[1:] + "0"), Port: 179, MyASN: 65000, PeerASN: as}
	}
	v.BGPAdvertisements["each"] = view.BGPAdvertisement{Peers: []string{"r1", "r2"}, Length4: 32, Length6: 128}
	v.BGPAdvertisements["all"] = view.BGPAdvertisement{Peers: []string{"r2"}, Length4: 24, Length6: 48, Attributes: view.Attributes{LocalPref: 50}}
	for key, svc := range v.Services {
		svc.Local = true
		v.Services[key] = svc
	}
	return v
}

// flip removes all endpoints of a Service, or restores them.
func flip(v *view.View, key pools.ServiceKey, all []view.Endpoint) {
	slice := v.Slices[key]["s"]
	if len(slice.Endpoints) > 0 {
		slice.Endpoints = nil
	} else {
		slice.Endpoints = all
	}
	v.Slices[key]["s"] = slice
}

// The last endpoint of a Service changes the route of that Service and no other. Another endpoint, or a timer of a
// peer, changes no route.
func TestChangedNamesOneRoute(t *testing.T) {
	v, p := manyRouted(100), NewPlanner(Options{Node: "a", BGP: true})
	d, _ := p.Plan(v, view.Touched{All: true}, time.Time{})
	if len(d.BGP.Routes) != 101 {
		t.Fatalf("%d routes, want one for each of 100 addresses and one for all", len(d.BGP.Routes))
	}
	key, touched := serviceKey("default/s7"), view.Touched{Services: map[serviceName]struct{}{serviceKey("default/s7"): {}}}
	all := slices.Clone(v.Slices[key]["s"].Endpoints)
	route := netip.PrefixFrom(numbered(1, 7), 128)
	for range 2 {
		flip(v, key, all)
		_, c := p.Plan(v, touched, time.Time{})
		if _, named := c.Routes[route]; len(c.Routes) != 1 || !named || len(c.Peers) > 0 || len(c.Addrs) != 1 {
			t.Errorf("changed %+v for all endpoints of %v", c, key)
		}
	}
	dropEndpoint(v, key)
	if _, c := p.Plan(v, touched, time.Time{}); len(c.Routes)+len(c.Addrs) > 0 {
		t.Errorf("changed %+v for one endpoint of %v", c, key)
	}
	peer := v.BGPPeers["r1"]
	peer.HoldTime = 9 * time.Second
	v.BGPPeers["r1"] = peer
	_, c := p.Plan(v, view.Touched{BGPPeers: map[string]struct{}{"r1": {}}}, time.Time{})
	if _, named := c.Peers["r1"]; !named || len(c.Peers) != 1 || len(c.Routes)+len(c.Addrs) > 0 {
		t.Errorf("changed %+v for a timer of r1", c)
	}
}

// BenchmarkOneRoute measures a plan after the last endpoint of one Service was removed or restored, which changes a
// route.
func BenchmarkOneRoute(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint("addresses=", n), func(b *testing.B) {
			v, p := manyRouted(n), NewPlanner(Options{Node: "a", BGP: true})
			p.Plan(v, view.Touched{All: true}, time.Time{})
			key := serviceKey("default/s7")
			all := slices.Clone(v.Slices[key]["s"].Endpoints)
			runtime.GC() // collect garbage of the first plan
			for b.Loop() {
				flip(v, key, all)
				if _, c := p.Plan(v, view.Touched{Services: map[pools.ServiceKey]struct{}{key: {}}}, time.Time{}); len(c.Routes) != 1 {
					b.Fatalf("%d routes changed", len(c.Routes))
				}
			}
		})
	}
}

// BenchmarkAllRoutes measures a plan after a peer of all routes was added or removed.
func BenchmarkAllRoutes(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint("addresses=", n), func(b *testing.B) {
			v, p := manyRouted(n), NewPlanner(Options{Node: "a", BGP: true})
			p.Plan(v, view.Touched{All: true}, time.Time{})
			r1 := v.BGPPeers["r1"]
			for b.Loop() {
				_, there := v.BGPPeers["r1"]
				incremental.Set(v.BGPPeers, "r1", r1, !there)
				p.Plan(v, view.Touched{BGPPeers: map[string]struct{}{"r1": {}}}, time.Time{})
			}
		})
	}
}

// A change of another Node that does not affect routes costs nothing for addresses that are not announced here.
func TestOtherNodeCostsNothing(t *testing.T) {
	v, p := manyRouted(1000), NewPlanner(Options{Node: "b", BGP: true})
	v.Members.Peers = map[string]view.Member{"a": {Alive: true}}
	p.Plan(v, view.Touched{All: true}, time.Time{})
	if allocs := testing.AllocsPerRun(10, func() {
		node := v.Nodes["a"]
		node.Stopping, node.Labels = !node.Stopping, map[string]string{"other": fmt.Sprint(node.Stopping)}
		v.Nodes["a"] = node
		p.Plan(v, view.Touched{Nodes: map[string]struct{}{"a": {}}}, time.Time{})
	}); allocs > 500 {
		t.Errorf("%v allocations for 1000 addresses", allocs)
	}
}

// BenchmarkOtherNode measures a plan after a change of another Node: one without an effect on routes; one that excludes
// or restores a node without endpoints; and one that does so for the node with the only endpoint of every address with
// policy Local, which is reported for each address.
func BenchmarkOtherNode(b *testing.B) {
	for _, peers := range []int{2, 202} {
		for _, change := range []string{"nothing", "elsewhere", "everything"} {
			b.Run(fmt.Sprintf("addresses=10000/peers=%d/change=%s", peers, change), func(b *testing.B) {
				v, p := manyRouted(10000), NewPlanner(Options{Node: "b", BGP: true})
				addr := numbered(9, 1000)
				for i := range peers - 2 {
					addr = addr.Next()
					v.BGPPeers[fmt.Sprint("rack", i)] = view.BGPPeer{Address: addr, Port: 179, MyASN: 65000, PeerASN: 65001,
						Nodes: []pools.Selector{{{Key: "rack", Operator: pools.In, Values: []string{fmt.Sprint(i)}}}}}
				}
				v.Nodes["c"] = view.Node{}
				v.Members.Peers = map[string]view.Member{"a": {Alive: true}, "c": {Alive: true}}
				d, _ := p.Plan(v, view.Touched{All: true}, time.Time{})
				if n := len(d.Routed); n != 10000 {
					b.Fatalf("%d addresses", n)
				}
				runtime.GC() // collect garbage of the first plan
				for b.Loop() {
					name := "a"
					if change == "elsewhere" {
						name = "c"
					}
					node := v.Nodes[name]
					node.Stopping, node.NetworkUnavailable = !node.Stopping, node.NetworkUnavailable != (change != "nothing")
					v.Nodes[name] = node
					if _, c := p.Plan(v, view.Touched{Nodes: map[string]struct{}{name: {}}}, time.Time{}); (len(c.Addrs) == 10000) != (change == "everything") {
						b.Fatalf("of %d addresses is something new", len(c.Addrs))
					}
				}
			})
		}
	}
}
