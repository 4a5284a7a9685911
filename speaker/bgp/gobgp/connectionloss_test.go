package gobgp

import (
	"context"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/test/lab/router"
)

// cut makes the kernel of a namespace end its TCP connections with an address: the other end receives a RST
// (sock_diag(7), SOCK_DESTROY).
func cut(t *testing.T, space *netspace.Space, with netip.Addr) {
	t.Helper()
	space.Must(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		dst := with.String()
		if with.Is6() {
			dst = "[" + dst + "]" // else the part after the last colon is a port
		}
		out, err := exec.CommandContext(ctx, "ss", "--kill", "--tcp", "--no-header", "state", "established", "dst", dst).CombinedOutput()
		if err != nil || len(out) == 0 {
			t.Errorf("no connection with %v was ended: %v %s", with, err, out)
		}
		return nil
	})
}

// graceful configures both families over one session, with graceful restart, on the first router.
func (r *far) graceful(t *testing.T) routes.Peer {
	t.Helper()
	n, p := r.neighbor(), r.peer()
	n.IPv4, n.IPv6, p.IPv4, p.IPv6, p.NextHop6, p.GracefulRestart = true, true, true, true, r.node6, true
	r.neighbors(t, n)
	return p
}

// table waits until the router's kernel has exactly the routes of both families, plus these.
func (r *far) table(t *testing.T, four ...netip.Prefix) {
	t.Helper()
	want := map[netip.Prefix][]netip.Addr{vip4: {r.link.node}, pool4: {r.link.node}}
	for _, p := range four {
		want[p] = []netip.Addr{r.link.node}
	}
	r.kernel(t, 4, want)
	r.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {r.node6}, pool6: {r.node6}})
}

// both returns a full set of one peer with prefixes of both families.
func both(p routes.Peer) routes.Change {
	return wanted(map[string]routes.Peer{"r": p}, map[netip.Prefix]routes.Route{vip4: to("r"), pool4: to("r"), vip6: to("r"), pool6: to("r")})
}

// nextSession waits for the session that follows a previous one, and until the router has received its full table.
func (r *far) nextSession(t *testing.T, d *node, before routes.Session) routes.Session {
	t.Helper()
	s := d.session(t, "r", "up again", func(s routes.Session) bool {
		return s.State == routes.SessionEstablished && s.Changes == before.Changes+1
	})
	d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: to("r")}})
	r.table(t, more)
	d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: nil}})
	r.table(t)
	return s
}

// TestConnectionBroken: with graceful restart only the connection is lost, at either end: no router changes a route,
// and the session is up again within seconds.
func TestConnectionBroken(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		d := startNode(t, f.node)
		d.apply(t, both(r.graceful(t)))
		s := d.up(t, "r")
		r.table(t)
		stays := unchanged(t, f, more)
		for _, end := range []func(){func() { cut(t, f.node, r.link.router) }, func() { cut(t, r.space, r.link.node) }} {
			end()
			began := time.Now()
			s = r.nextSession(t, d, s)
			if s.Reason != routes.Unreachable {
				t.Errorf("the session is back, but not with why it was down: %+v", s)
			}
			t.Logf("back after %v", time.Since(began))
			stays()
		}
	})
}

// TestConnectionsBrokenOfSome: two of four routers lose the connection, one of them with a queried AS. The other
// sessions stay, and no router changes a route.
func TestConnectionsBrokenOfSome(t *testing.T) {
	t.Parallel()
	f, d, _ := gracefully(t)
	stays := unchanged(t, f, more)
	var before []router.Session
	for _, r := range f.routers {
		before = append(before, r.since(t, "node"))
	}
	cut(t, f.node, f.routers[0].link.router)
	cut(t, f.node, f.routers[2].router6)
	for _, name := range []string{"r0", "r2"} {
		d.session(t, name, "up again", func(s routes.Session) bool { return s.State == routes.SessionEstablished && s.Changes == 2 })
	}
	d.apply(t, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{more: to("r0", "r1", "r2", "r3")}})
	for _, r := range f.routers {
		r.table(t, more)
	}
	for _, i := range []int{1, 3} {
		f.routers[i].still(t, "node", before[i])
	}
	stays()
}

// TestDownIsNoRestart: BFD takes a session with graceful restart down: the routes are removed.
func TestDownIsNoRestart(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		d := startNode(t, f.node)
		d.apply(t, both(r.graceful(t)))
		s := d.up(t, "r")
		r.table(t)
		monitor, err := r.place.Monitor(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer monitor.Stop()
		d.order(t, order{Down: []string{"r", "BFD: no packets for 300ms"}})
		r.nextSession(t, d, s)
		gone := map[netip.Prefix]bool{}
		for _, e := range monitor.Events() {
			gone[e.Prefix] = gone[e.Prefix] || e.Deleted
		}
		for _, p := range []netip.Prefix{vip4, pool4, vip6, pool6} {
			if !gone[p] {
				t.Errorf("%v stayed though BFD found the path dead", p)
			}
		}
	})
}
