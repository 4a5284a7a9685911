package gobgp

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/router"
)

// TestPassword: with the wrong password no session comes up; after it is corrected in place, it does.
func TestPassword(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		n4, n6 := r.neighbor(), r.neighbor()
		n6.Name, n6.Address = "node6", r.node6
		n4.Password, n6.Password = "correct-horse", "battery-staple"
		r.neighbors(t, n4, n6)
		d := startNode(t, f.node)
		wrong, right := r.peer(), r.peer6()
		wrong.Password, right.Password = "wrong", "battery-staple"
		wrong.ConnectTime = 3 * time.Second
		prefixes := map[netip.Prefix]routes.Route{vip4: to("r4"), vip6: to("r6")}
		d.apply(t, wanted(map[string]routes.Peer{"r4": wrong, "r6": right}, prefixes))
		d.up(t, "r6")
		r.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {r.node6}})
		s := d.fails(t, "r4", routes.NoAnswer)
		if !strings.Contains(s.Message, "password") {
			t.Errorf("the password is not mentioned: %s", s.Message)
		}
		six := r.since(t, "node6")
		wrong.Password = "correct-horse"
		d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"r4": &wrong}})
		d.up(t, "r4")
		r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}})
		r.still(t, "node6", six)
	})
}

// TestTTLSecurity: a session for which both sides require a TTL of 255 (RFC 5082), one for which only the router does,
// and one for which only this side does. Only the first comes up; the others do once the router agrees.
func TestTTLSecurity(t *testing.T) {
	t.Parallel()
	for name, six := range map[string]bool{"ipv4": false, "ipv6": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, f *fixture, r *far) {
				family, bits := 4, 32
				if six {
					family, bits = 6, 128
				}
				var neighbors []router.Neighbor
				peers, prefixes := map[string]routes.Peer{}, map[netip.Prefix]routes.Route{}
				prefix := func(i int) netip.Prefix {
					return netip.PrefixFrom(addr(map[int]string{4: "192.0.2.", 6: "2001:db8:f::"}[family]+fmt.Sprint(i+1)), bits)
				}
				want := map[netip.Prefix][]netip.Addr{}
				for i, who := range []string{"both", "theirs", "ours"} {
					n, p := r.pair(t, f, i, six)
					n.Name, n.TTLSecurity, p.TTLSecurity = who, who != "ours", who != "theirs"
					p.HoldTime = 3 * time.Second
					neighbors, peers[who], prefixes[prefix(i)] = append(neighbors, n), p, to(who)
				}
				r.neighbors(t, neighbors...)
				d := startNode(t, f.node)
				d.apply(t, wanted(peers, prefixes))
				d.up(t, "both")
				// Routers check the TTL once a connection exists, so this side sees a router that becomes silent at
				// some time.
				s := d.session(t, "theirs", "a reason", func(s routes.Session) bool { return s.Reason != "" })
				t.Logf("the router wants 255, this side sends 1: %s: %s", s.Reason, s.Message)
				s = d.session(t, "ours", "a reason", func(s routes.Session) bool { return s.Reason == routes.NoAnswer })
				t.Logf("this side wants 255: %s: %s", s.Reason, s.Message)
				want[prefix(0)] = []netip.Addr{neighbors[0].Address}
				r.kernel(t, family, want)
				neighbors = slices.Clone(neighbors)
				neighbors[1].TTLSecurity, neighbors[2].TTLSecurity = false, true
				r.neighbors(t, neighbors...)
				for i := range neighbors {
					want[prefix(i)] = []netip.Addr{neighbors[i].Address}
				}
				r.kernel(t, family, want)
			})
		})
	}
}

// TestMultiHop: the router is behind another one. The session uses a source address that the router accepts, and only
// where ebgpMultiHop allows it, with a fixed AS and with any external one.
func TestMultiHop(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		// node -- f's link -- middle: the router's end of the link moves to a namespace between.
		middle, node := netspace.New(t), netspace.New(t)
		middle.Sysctl(t, "net.ipv4.ip_forward", "1")
		netspace.Join(t, node, "eth0", "203.0.113.66/28", middle, "eth0", "203.0.113.65/28")
		netspace.Join(t, middle, "eth1", "203.0.113.82/28", r.space, "eth1", "203.0.113.81/28")
		node.Route(t, "203.0.113.80/28", "203.0.113.65")
		r.space.Route(t, "203.0.113.64/28", "203.0.113.82")
		sources := map[string]netip.Addr{"fixed": addr("203.0.113.67"), "any": addr("203.0.113.68")}
		ends := map[string]netip.Addr{"fixed": addr("203.0.113.83"), "any": addr("203.0.113.84")}
		prefixOf := map[string]netip.Prefix{"fixed": vip4, "any": more}
		peers, prefixes, neighbors := map[string]routes.Peer{}, map[netip.Prefix]routes.Route{}, []router.Neighbor{}
		for name, source := range sources {
			node.Address(t, "eth0", source.String()+"/28")
			r.space.Address(t, "eth1", ends[name].String()+"/28")
			neighbors = append(neighbors, router.Neighbor{Name: name, Address: source, Local: ends[name], ASN: nodeASN, MultiHop: 5})
			p := r.peer()
			p.Address, p.Source, p.ConnectTime = ends[name], source, 2*time.Second
			if name == "any" {
				p.PeerASN, p.Dynamic = 0, view.AnyExternal
			}
			peers[name], prefixes[prefixOf[name]] = p, to(name)
		}
		r.neighbors(t, neighbors...)
		d := startNode(t, node)
		d.apply(t, wanted(peers, prefixes))
		change := routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{}}
		for name, p := range peers {
			s := d.session(t, name, "failed", func(s routes.Session) bool { return s.Reason == routes.NoAnswer || s.Reason == routes.Unreachable })
			t.Logf("%s without ebgpMultiHop: %s: %s", name, s.Reason, s.Message)
			if s.Changes > 0 {
				t.Errorf("%s has been up without ebgpMultiHop: %+v", name, s)
			}
			p.MultiHop = true
			change.Peers[name] = &p
		}
		d.apply(t, change)
		for name, source := range sources {
			d.up(t, name)
			r.path(t, prefixOf[name], func(p router.Path) bool { return p.NextHop == source && p.From == source })
		}
	})
}

// TestMisconfigured: the error is named, and affects neither the existing session nor a new one.
func TestMisconfigured(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		n6 := r.neighbor()
		n6.Name, n6.Address = "node6", r.node6
		n4 := r.neighbor()
		r.neighbors(t, n4, n6)
		d := startNode(t, f.node)
		with := func(change func(*routes.Peer)) *routes.Peer {
			p := r.peer()
			change(&p)
			return &p
		}
		d.apply(t, wanted(map[string]routes.Peer{"good": r.peer6()}, map[netip.Prefix]routes.Route{vip6: to("good")}))
		d.up(t, "good")
		good := r.since(t, "node6")
		bad := map[string]*routes.Peer{
			"asn":        with(func(p *routes.Peer) { p.PeerASN = 65099 }),
			"refused":    with(func(p *routes.Peer) { p.Address, p.Port = r.link.node, 1790 }), // the node itself
			"noroute":    with(func(p *routes.Peer) { p.Address = addr("203.0.113.250") }),
			"nohost":     with(func(p *routes.Peer) { p.Address = addr("198.51.100.14"); p.ConnectTime = 6 * time.Second }),
			"source":     with(func(p *routes.Peer) { p.Address, p.Source = addr("198.51.100.13"), addr("203.0.113.99") }),
			"impossible": with(func(p *routes.Peer) { p.Address = addr("198.51.100.12"); p.MultiHop, p.TTLSecurity = true, true }),
		}
		d.apply(t, routes.Change{RouterID: nodeID, Peers: bad})
		for name, why := range map[string]view.Reason{"asn": routes.WrongASN, "refused": routes.Refused,
			"noroute": routes.Unreachable, "nohost": routes.Unreachable, "source": routes.NotConfigured, "impossible": routes.NotConfigured} {
			d.fails(t, name, why)
		}
		// Fixed one by one; for the AS, the router's side is wrong next.
		r.conf.Neighbors[0].ASN = 65099
		r.neighbors(t, r.conf.Neighbors...)
		d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"asn": with(func(p *routes.Peer) {})}})
		d.session(t, "asn", "the router's message", func(s routes.Session) bool {
			return s.Reason == routes.WrongASN && strings.Contains(s.Message, "NOTIFICATION")
		})
		d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"asn": with(func(p *routes.Peer) { p.LocalASN = 65099 })},
			Routes: map[netip.Prefix]routes.Route{vip4: to("asn")}})
		d.up(t, "asn")
		r.path(t, vip4, func(p router.Path) bool { return p.ASPath == "65099" })
		r.still(t, "node6", good)
		// The address gets another name.
		again := r.peer6()
		d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"good": nil, "again": &again}, Routes: map[netip.Prefix]routes.Route{vip6: to("again")}})
		d.up(t, "again")
		r.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {r.node6}})
		if _, ok := d.has("good"); ok {
			t.Error("a peer that is gone has a session")
		}
	})
}

// TestDynamicASN: any external AS, an internal one, and one that should be external but is not.
func TestDynamicASN(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bird", "frr")
	in, out := f.routers[0], f.routers[1]
	in.conf.ASN = nodeASN
	in.neighbors(t, in.neighbor())
	n := out.neighbor()
	n.ASN = 0
	out.neighbors(t, n)
	d := startNode(t, f.node)
	dynamic := func(r *far, kind view.DynamicASN) routes.Peer {
		p := r.peer()
		p.PeerASN, p.Dynamic = 0, kind
		return p
	}
	prefixes := map[netip.Prefix]routes.Route{vip4: {"in": {LocalPref: 77}, "out": {LocalPref: 77}}}
	d.apply(t, wanted(map[string]routes.Peer{"in": dynamic(in, view.AnyInternal), "out": dynamic(out, view.AnyExternal)}, prefixes))
	d.session(t, "in", "up with this node's AS", func(s routes.Session) bool { return s.State == routes.SessionEstablished && s.PeerASN == nodeASN })
	d.session(t, "out", "up with the router's AS", func(s routes.Session) bool { return s.State == routes.SessionEstablished && s.PeerASN == routerASN })
	in.path(t, vip4, func(p router.Path) bool { return p.LocalPref == 77 && p.ASPath == "" })
	out.path(t, vip4, func(p router.Path) bool { return p.LocalPref != 77 && p.ASPath == "65001" })

	// Another external AS is accepted like the first one, and an internal one is not.
	out.conf.ASN = 4200000002
	out.neighbors(t, n)
	d.session(t, "out", "up with the router's new AS", func(s routes.Session) bool {
		return s.State == routes.SessionEstablished && s.PeerASN == out.conf.ASN
	})
	out.path(t, vip4, func(p router.Path) bool { return p.ASPath == "65001" })
	p := dynamic(in, view.AnyExternal)
	d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"in": &p}})
	d.fails(t, "in", routes.WrongASN)
}

// TestNothingAccepted: routes from routers are in no table here.
func TestNothingAccepted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bird", "frr")
	peers := map[string]routes.Peer{}
	for _, r := range f.routers {
		r.conf.Announce = []netip.Prefix{pfx("203.0.113.128/25"), pfx("2001:db8:aa::/64")}
		n := r.neighbor()
		n.IPv4, n.IPv6 = true, true
		r.neighbors(t, n)
		p := r.peer()
		p.IPv6, p.NextHop6 = true, r.node6
		peers[r.kind] = p
	}
	d := startNode(t, f.node)
	d.apply(t, wanted(peers, map[netip.Prefix]routes.Route{vip4: to("bird", "frr"), vip6: to("bird", "frr")}))
	var have answer
	eventually.Nil(t, patience, "both routers' prefixes have come", func(context.Context) error {
		have = d.order(t, order{Paths: true})
		for _, r := range f.routers {
			for _, p := range r.conf.Announce {
				if !slices.Contains(have.Came[r.link.router.String()], p.String()) {
					return fmt.Errorf("have %v", have.Came)
				}
			}
		}
		return nil
	})
	if have.Paths != 2*len(f.routers) {
		t.Errorf("the GoBGPs have %d paths, want their own 2 each", have.Paths)
	}
	for _, r := range f.routers {
		r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}})
		r.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {r.node6}})
	}
}
