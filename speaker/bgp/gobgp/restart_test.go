package gobgp

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/router"
)

// gracefully returns a fixture with two routers of each kind, one with a fixed and one with any AS, both families, and
// a driver with graceful restart; all routes are in the kernels.
func gracefully(t *testing.T) (f *fixture, d *node, set routes.Change) {
	f = newFixture(t, "bird", "frr", "bird", "frr")
	peers := map[string]routes.Peer{}
	names := []string{}
	for i, r := range f.routers {
		n, p := r.neighbor(), r.peer()
		if i >= 2 {
			n.Address, p = r.node6, r.peer6()
		}
		n.IPv4, n.IPv6, p.IPv4, p.IPv6 = true, true, true, true
		p.NextHop4, p.NextHop6, p.GracefulRestart = r.link.node, r.node6, true
		if i == 1 || i == 2 {
			p.PeerASN, p.Dynamic = 0, view.AnyExternal
		}
		r.neighbors(t, n)
		name := fmt.Sprintf("r%d", i)
		peers[name], names = p, append(names, name)
	}
	set = wanted(peers, map[netip.Prefix]routes.Route{vip4: to(names...), vip6: to(names...), pool4: to(names...), pool6: to(names...)})
	d = startNode(t, f.node)
	d.apply(t, set)
	for i, r := range f.routers {
		d.up(t, fmt.Sprintf("r%d", i))
		r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}, pool4: {r.link.node}})
		r.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {r.node6}, pool6: {r.node6}})
	}
	return f, d, set
}

// TestKilled: the process is killed and started again: no router changes a route.
func TestKilled(t *testing.T) {
	t.Parallel()
	f, d, set := gracefully(t)
	stays := unchanged(t, f, more)
	for range 2 {
		d.kill()
		eventually.True(t, patience, "every router misses the session", func() bool {
			for _, r := range f.routers {
				if s, err := r.Sessions(t.Context()); err != nil || s["node"].Established {
					return false
				}
			}
			return true
		})
		d = startNode(t, f.node)
		d.apply(t, set)
		for i := range f.routers {
			d.up(t, fmt.Sprintf("r%d", i))
		}
		names := to("r0", "r1", "r2", "r3")
		d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: names}})
		for _, r := range f.routers {
			r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}, pool4: {r.link.node}, more: {r.link.node}})
		}
		d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: nil}})
		for _, r := range f.routers {
			r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}, pool4: {r.link.node}})
		}
		stays()
	}
}

// more is a route that is added once a restart is complete: it arrives after the full table, so pending removals have
// happened by then.
var more = pfx("192.0.2.77/32")

// unchanged watches the routers' kernels; the returned function fails the test if any route but this one changed.
func unchanged(t *testing.T, f *fixture, but netip.Prefix) func() {
	t.Helper()
	monitors := make([]*router.Monitor, len(f.routers))
	for i, r := range f.routers {
		m, err := r.place.Monitor(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Stop() })
		monitors[i] = m
	}
	return func() {
		t.Helper()
		for i, m := range monitors {
			for _, e := range m.Events() {
				if e.Prefix != but {
					t.Errorf("router %d (%s) changed a route at %v: deleted %v: %s", i, f.routers[i].kind, e.At, e.Deleted, e.Text)
				}
			}
		}
	}
}

// TestCrash: a peer sends the UPDATE of CVE-2026-41643, which crashes the process with GoBGP. The other peers observe
// nothing. The peer is first one without 4-octet AS numbers, then one with.
func TestCrash(t *testing.T) {
	t.Parallel()
	evil := routes.Peer{Address: addr("203.0.113.200"), Port: 1790, MyASN: nodeASN, PeerASN: routerASN, IPv4: true, MultiHop: true, ConnectTime: time.Second}
	f, d, _ := gracefully(t)
	stays := unchanged(t, f, more)
	// The attacker is on the first router.
	r := f.routers[0]
	r.space.Address(t, "eth0", "203.0.113.200/32")
	f.node.Route(t, "203.0.113.200/32", r.link.router.String())
	var l net.Listener
	r.space.Must(t, func() (err error) {
		l, err = net.Listen("tcp4", "203.0.113.200:1790")
		return err
	})
	defer l.Close()
	for i, crash := range router.Crashes {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := crash.Take(l); err != nil {
				t.Error(err)
			}
		}()
		attacked := startNode(t, f.node)
		attacked.change(t, wanted(map[string]routes.Peer{"evil": evil}, nil)) // may end unanswered
		select {
		case <-attacked.ended:
			t.Logf("attack %d: the process ended", i)
		case <-time.After(patience):
			t.Fatal("the process lives: is GoBGP fixed? Then this test has lost its reason")
		}
		<-done
		d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: to("r0", "r1", "r2", "r3")}})
		for _, r := range f.routers {
			r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}, pool4: {r.link.node}, more: {r.link.node}})
		}
		d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: nil}})
		for _, r := range f.routers {
			r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}, pool4: {r.link.node}})
		}
		stays()
	}
}
