package gobgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab/router"
)

// TestFirstChanges: the first change must be complete; another router ID needs a new process.
func TestFirstChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bird")
	r := f.routers[0]
	r.neighbors(t, r.neighbor())
	d := startNode(t, f.node)
	p := r.peer()
	p.RouterID = nodeID
	c := peerChange{Peer: p}
	child := d.child(t, "r")
	if _, err := child.try(order{Change: &c}); err == nil {
		t.Error("a change was applied before a full set")
	}
	c.Full, c.Routes = true, map[netip.Prefix]*view.Attributes{vip4: {}}
	if _, err := child.try(order{Change: &c}); err != nil {
		t.Fatal(err)
	}
	r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}})
	c.Peer.RouterID = addr("203.0.113.10")
	_, err := child.try(order{Change: &c})
	if err == nil || !strings.Contains(err.Error(), "needs another process") {
		t.Errorf("another router id: %v", err)
	}
}

// kind is one of the sessions of TestSessions.
type kind struct {
	six, both bool
	// set changes the configuration of both sides.
	set func(*router.Neighbor, *routes.Peer)
	// seen checks further properties of the router's session.
	seen func(router.Session) bool
	asn  uint32 // as seen by the router; 0 is nodeASN
}

var kinds = []struct {
	name string
	kind
}{
	{"ipv4", kind{}},
	{"ipv6", kind{six: true}},
	{"both over ipv4", kind{both: true}},
	{"both over ipv6", kind{six: true, both: true}},
	{"both over link-local, any AS", kind{six: true, both: true, set: func(n *router.Neighbor, p *routes.Peer) {
		n.Address, n.Local, p.Address, p.Source = addr("fe80::a1%eth0"), netip.Addr{}, addr("fe80::b1%eth0"), netip.Addr{}
		p.PeerASN, p.Dynamic = 0, view.AnyExternal
	}}},
	{"timers", kind{
		set: func(n *router.Neighbor, p *routes.Peer) {
			p.HoldTime, p.KeepaliveTime = 33*time.Second, 10*time.Second
		},
		seen: func(s router.Session) bool { return s.Hold == 33*time.Second && s.RestartTime == 0 },
	}},
	{"graceful restart", kind{
		set:  func(n *router.Neighbor, p *routes.Peer) { p.GracefulRestart, p.RestartTime = true, 77*time.Second },
		seen: func(s router.Session) bool { return s.RestartTime == 77*time.Second },
	}},
	{"localASN", kind{asn: 65011, set: func(n *router.Neighbor, p *routes.Peer) { n.ASN, p.LocalASN = 65011, 65011 }}},
}

// TestSessions: one router with a session of each kind, each with its own prefix. The router accepts each session from
// one address of the node only, the sourceAddress, and sees the configured router ID, timers and AS in each.
func TestSessions(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		f.node.Address(t, "eth0", "fe80::a1/64")
		r.space.Address(t, "eth0", "fe80::b1/64")
		var neighbors []router.Neighbor
		peers, prefixes := map[string]routes.Peer{}, map[netip.Prefix]routes.Route{}
		want := map[bool]map[netip.Prefix][]netip.Addr{true: {}, false: {}}
		count := map[bool]int{}
		for i, k := range kinds {
			n, p := r.pair(t, f, count[k.six], k.six)
			count[k.six]++
			n.Name = fmt.Sprintf("n%d", i)
			hop4, hop6 := r.link.node, r.node6 // of the other family, or of none that is link-local
			if k.both {
				n.IPv4, n.IPv6, p.IPv4, p.IPv6, p.NextHop4, p.NextHop6 = true, true, true, true, hop4, hop6
			}
			if own := n.Address; k.six {
				hop6 = own
			} else {
				hop4 = own
			}
			if k.set != nil {
				k.set(&n, &p)
			}
			if p.Address.Zone() != "" {
				hop6 = r.node6
			}
			neighbors, peers[k.name] = append(neighbors, n), p
			for _, four := range []bool{true, false} {
				prefix, hop := netip.PrefixFrom(addr(fmt.Sprintf("192.0.2.%d", 100+i)), 32), hop4
				if !four {
					prefix, hop = netip.PrefixFrom(addr(fmt.Sprintf("2001:db8:f::%x", 0x100+i)), 128), hop6
				}
				prefixes[prefix] = to(k.name)
				if four && p.IPv4 || !four && p.IPv6 {
					want[four][prefix] = []netip.Addr{hop}
				}
			}
		}
		r.neighbors(t, neighbors...)
		d := startNode(t, f.node)
		d.apply(t, wanted(peers, prefixes))
		for _, k := range kinds {
			s := d.up(t, k.name)
			prefixes := 1
			if k.both {
				prefixes = 2
			}
			if s.PeerASN != routerASN || s.PeerID != r.conf.ID || s.Changes != 1 || s.Reason != "" || s.Prefixes != prefixes {
				t.Errorf("%s: session %+v", k.name, s)
			}
		}
		r.kernel(t, 4, want[true])
		r.kernel(t, 6, want[false])
		sessions, err := r.Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, k := range kinds {
			s := sessions[neighbors[i].Name]
			if s.ID != nodeID || s.ASN != cmp.Or(k.asn, nodeASN) || k.seen != nil && !k.seen(s) {
				t.Errorf("%s: the router has %+v", k.name, s)
			}
			for prefix := range prefixes {
				if _, announced := prefixes[prefix][k.name]; announced && (prefix.Addr().Is4() && peers[k.name].IPv4 || prefix.Addr().Is6() && peers[k.name].IPv6) {
					r.path(t, prefix, func(p router.Path) bool { return p.ASPath == fmt.Sprint(cmp.Or(k.asn, nodeASN)) })
				}
			}
		}
	})
}

// TestAttributes: the /32 and the /24 of one address, each with its own communities and localPref, to an internal and
// an external peer with different attributes; then one of them changes, and one is removed.
func TestAttributes(t *testing.T) {
	t.Parallel()
	for _, internal := range []string{"bird", "frr"} {
		external := map[string]string{"bird": "frr", "frr": "bird"}[internal]
		t.Run(internal+" internal", func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, internal, external)
			in, out := f.routers[0], f.routers[1]
			in.conf.ASN = nodeASN
			in.neighbors(t, in.neighbor())
			out.neighbors(t, out.neighbor())
			pin := in.peer()
			pin.PeerASN = nodeASN
			d := startNode(t, f.node)
			host := view.Attributes{LocalPref: 300, Communities: view.NewCommunitySet(65001<<16|100, 65001<<16|7),
				LargeCommunities: view.NewLargeCommunitySet(view.LargeCommunity{Global: 4200000000, Local1: 1, Local2: 2})}
			net := view.Attributes{LocalPref: 50, Communities: view.NewCommunitySet(65001<<16 | 24)}
			prefixes := map[netip.Prefix]routes.Route{vip4: {"in": host, "out": net}, pool4: {"in": net, "out": host}}
			d.apply(t, wanted(map[string]routes.Peer{"in": pin, "out": out.peer()}, prefixes))
			is := func(r *far, prefix netip.Prefix, a view.Attributes, pref uint32) {
				t.Helper()
				r.path(t, prefix, func(p router.Path) bool {
					return p.LocalPref == pref && same(p.Communities, standard(a)) && same(p.LargeCommunities, large(a)) && p.From == r.link.node && p.NextHop == r.link.node
				})
			}
			pref := map[string]uint32{"bird": 100, "frr": 0}[external] // its own default: none was received
			is(in, vip4, host, 300)
			is(in, pool4, net, 50)
			is(out, vip4, net, pref)
			is(out, pool4, host, pref)

			d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{vip4: {"in": net, "out": host}}})
			is(in, vip4, net, 50)
			is(out, vip4, host, pref)
			is(in, pool4, net, 50)

			d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{vip4: {"in": net}, pool4: nil}})
			in.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {in.link.node}})
			out.kernel(t, 4, map[netip.Prefix][]netip.Addr{})
			d.session(t, "in", "one prefix", func(s routes.Session) bool { return s.Prefixes == 1 && s.Changes == 1 })
			d.session(t, "out", "no prefix", func(s routes.Session) bool { return s.Prefixes == 0 && s.Changes == 1 })
		})
	}
}

// same compares sets, one ordered by text and the other by number.
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
