package gobgp

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/test/lab/router"
)

// TestFirstChanges: the first change must be whole; one without a router id speaks to nobody yet; another router id needs a new process.
func TestFirstChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "bird")
	f := w.routers[0]
	f.neighbors(t, f.neighbor())
	d := startNode(t, w.node)
	p := f.peer()
	c := plan.BGPChange{RouterID: nodeID, Peers: map[string]*plan.Peer{"r": &p}}
	if _, err := d.try(order{Change: &c}); err == nil {
		t.Error("a change was taken before a whole set")
	}
	d.apply(t, plan.BGPChange{Whole: true, Routes: map[netip.Prefix]plan.Route{vip4: to("r")}})
	d.apply(t, c)
	f.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {f.link.node}})
	_, err := d.try(order{Change: &plan.BGPChange{RouterID: addr("203.0.113.10")}})
	if err == nil || !strings.Contains(err.Error(), ErrRestart.Error()) {
		t.Errorf("another router id: %v, want %v", err, ErrRestart)
	}
}

// TestFamilies: sessions of IPv4, of IPv6, and of both families over either.
func TestFamilies(t *testing.T) {
	for name, over6 := range map[string]bool{"over4": false, "over6": true} {
		for families, both := range map[string]bool{"one": false, "both": true} {
			t.Run(name+"/"+families, func(t *testing.T) {
				each(t, func(t *testing.T, w *world, f *far) {
					n, p := f.neighbor(), f.peer()
					if over6 {
						n.Address, p = f.node6, f.peer6()
					}
					if both {
						n.IPv4, n.IPv6, p.IPv4, p.IPv6 = true, true, true, true
						p.NextHop4, p.NextHop6 = f.link.node, f.node6
					}
					f.neighbors(t, n)
					d := startNode(t, w.node)
					d.apply(t, wanted(map[string]plan.Peer{"r": p}, map[netip.Prefix]plan.Route{vip4: to("r"), vip6: to("r")}))
					s := d.up(t, "r")
					if s.PeerASN != routerASN || s.PeerID != f.conf.ID || s.Changes != 1 || s.Reason != "" {
						t.Errorf("session %+v", s)
					}
					want4, want6 := map[netip.Prefix][]netip.Addr{}, map[netip.Prefix][]netip.Addr{}
					if p.IPv4 {
						want4[vip4] = []netip.Addr{f.link.node}
					}
					if p.IPv6 {
						want6[vip6] = []netip.Addr{f.node6}
					}
					if got := len(want4) + len(want6); s.Prefixes != got {
						t.Errorf("%d prefixes, want %d", s.Prefixes, got)
					}
					f.kernel(t, 4, want4)
					f.kernel(t, 6, want6)
				})
			})
		}
	}
}

// TestAttributes: the /32 and the /24 of one address, each with its own communities and localPref, to an internal and an external peer
// that are told differently; then one of them changes, and one goes.
func TestAttributes(t *testing.T) {
	t.Parallel()
	for _, internal := range []string{"bird", "frr"} {
		external := map[string]string{"bird": "frr", "frr": "bird"}[internal]
		t.Run(internal+" internal", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, internal, external)
			in, out := w.routers[0], w.routers[1]
			in.conf.ASN = nodeASN
			in.neighbors(t, in.neighbor())
			out.neighbors(t, out.neighbor())
			pin := in.peer()
			pin.PeerASN = nodeASN
			d := startNode(t, w.node)
			host := plan.Attributes{LocalPref: 300, Communities: plan.NewCommunitySet(65001<<16|100, 65001<<16|7),
				LargeCommunities: plan.NewLargeCommunitySet(plan.LargeCommunity{Global: 4200000000, Local1: 1, Local2: 2})}
			net := plan.Attributes{LocalPref: 50, Communities: plan.NewCommunitySet(65001<<16 | 24)}
			routes := map[netip.Prefix]plan.Route{vip4: {"in": host, "out": net}, pool4: {"in": net, "out": host}}
			d.apply(t, wanted(map[string]plan.Peer{"in": pin, "out": out.peer()}, routes))
			is := func(f *far, prefix netip.Prefix, a plan.Attributes, pref uint32) {
				t.Helper()
				f.path(t, prefix, func(p router.Path) bool {
					return p.LocalPref == pref && same(p.Communities, standard(a)) && same(p.LargeCommunities, large(a)) && p.From == f.link.node && p.NextHop == f.link.node
				})
			}
			pref := map[string]uint32{"bird": 100, "frr": 0}[external] // of its own: none came
			is(in, vip4, host, 300)
			is(in, pool4, net, 50)
			is(out, vip4, net, pref)
			is(out, pool4, host, pref)

			d.apply(t, plan.BGPChange{RouterID: nodeID, Routes: map[netip.Prefix]plan.Route{vip4: {"in": net, "out": host}}})
			is(in, vip4, net, 50)
			is(out, vip4, host, pref)
			is(in, pool4, net, 50)

			d.apply(t, plan.BGPChange{RouterID: nodeID, Routes: map[netip.Prefix]plan.Route{vip4: {"in": net}, pool4: nil}})
			in.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {in.link.node}})
			out.kernel(t, 4, map[netip.Prefix][]netip.Addr{})
			d.session(t, "in", "one prefix", func(s plan.Session) bool { return s.Prefixes == 1 && s.Changes == 1 })
			d.session(t, "out", "no prefix", func(s plan.Session) bool { return s.Prefixes == 0 && s.Changes == 1 })
		})
	}
}

// same compares sets, one of them ascending by its text and the other by number.
func same(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	in := map[string]bool{}
	for _, x := range a {
		in[x] = true
	}
	for _, x := range b {
		if !in[x] {
			return false
		}
	}
	return true
}
