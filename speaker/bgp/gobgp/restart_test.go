package gobgp

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab/router"
)

// gracefully returns a world with two routers of each kind, one with a fixed and one with any AS, both families, and a
// driver with graceful restart; all routes are in the kernels.
func gracefully(t *testing.T) (w *world, d *node, set routes.Change) {
	w = newWorld(t, "bird", "frr", "bird", "frr")
	peers := map[string]routes.Peer{}
	names := []string{}
	for i, f := range w.routers {
		n, p := f.neighbor(), f.peer()
		if i >= 2 {
			n.Address, p = f.node6, f.peer6()
		}
		n.IPv4, n.IPv6, p.IPv4, p.IPv6 = true, true, true, true
		p.NextHop4, p.NextHop6, p.GracefulRestart = f.link.node, f.node6, true
		if i == 1 || i == 2 {
			p.PeerASN, p.Dynamic = 0, view.AnyExternal
		}
		f.neighbors(t, n)
		name := fmt.Sprintf("r%d", i)
		peers[name], names = p, append(names, name)
	}
	set = wanted(peers, map[netip.Prefix]routes.Route{vip4: to(names...), vip6: to(names...), pool4: to(names...), pool6: to(names...)})
	d = startNode(t, w.node)
	d.apply(t, set)
	for i, f := range w.routers {
		d.up(t, fmt.Sprintf("r%d", i))
		f.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {f.link.node}, pool4: {f.link.node}})
		f.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {f.node6}, pool6: {f.node6}})
	}
	return w, d, set
}

// TestKilled: the process is killed and started again: no router changes a route.
func TestKilled(t *testing.T) {
	t.Parallel()
	w, d, set := gracefully(t)
	stays := unchanged(t, w, more)
	for range 2 {
		d.kill()
		eventually(t, "every router misses the session", func() bool {
			for _, f := range w.routers {
				if s, err := f.Sessions(t.Context()); err != nil || s["node"].Established {
					return false
				}
			}
			return true
		})
		d = startNode(t, w.node)
		d.apply(t, set)
		for i := range w.routers {
			d.up(t, fmt.Sprintf("r%d", i))
		}
		names := to("r0", "r1", "r2", "r3")
		d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: names}})
		for _, f := range w.routers {
			f.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {f.link.node}, pool4: {f.link.node}, more: {f.link.node}})
		}
		d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: nil}})
		for _, f := range w.routers {
			f.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {f.link.node}, pool4: {f.link.node}})
		}
		stays()
	}
}

// more is a route that is added once a restart is complete: it arrives after the full table, so pending removals have
// happened by then.
var more = pfx("192.0.2.77/32")

// unchanged watches the routers' kernels; the returned function fails the test if any route but this one changed.
func unchanged(t *testing.T, w *world, but netip.Prefix) func() {
	t.Helper()
	monitors := make([]*router.Monitor, len(w.routers))
	for i, f := range w.routers {
		m, err := f.place.Monitor(t.Context())
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
					t.Errorf("router %d (%s) changed a route at %v: deleted %v: %s", i, w.routers[i].kind, e.At, e.Deleted, e.Text)
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
	w, d, _ := gracefully(t)
	stays := unchanged(t, w, more)
	// The attacker is on the first router.
	f := w.routers[0]
	f.space.Address(t, "eth0", "203.0.113.200/32")
	w.node.Route(t, "203.0.113.200/32", f.link.router.String())
	var l net.Listener
	f.space.Must(t, func() (err error) {
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
		attacked := startNode(t, w.node)
		attacked.change(t, wanted(map[string]routes.Peer{"evil": evil}, nil)) // may end unanswered
		select {
		case <-attacked.ended:
			t.Logf("attack %d: the process ended", i)
		case <-time.After(patience):
			t.Fatal("the process lives: is GoBGP fixed? Then this test has lost its reason")
		}
		<-done
		d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: to("r0", "r1", "r2", "r3")}})
		for _, f := range w.routers {
			f.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {f.link.node}, pool4: {f.link.node}, more: {f.link.node}})
		}
		d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: nil}})
		for _, f := range w.routers {
			f.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {f.link.node}, pool4: {f.link.node}})
		}
		stays()
	}
}
