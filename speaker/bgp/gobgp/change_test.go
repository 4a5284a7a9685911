package gobgp

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab/router"
)

// TestPeersComeAndGo: a peer is added, changed in place, changed with a new session, and removed; the other peer's
// session and routes do not change.
func TestPeersComeAndGo(t *testing.T) {
	t.Parallel()
	for _, kinds := range [][]string{{"bird", "frr"}, {"frr", "bird"}} {
		t.Run(kinds[0]+" stays", func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, kinds...)
			stays, moves := f.routers[0], f.routers[1]
			stays.neighbors(t, stays.neighbor())
			moves.neighbors(t, moves.neighbor())
			d := startNode(t, f.node)
			d.apply(t, wanted(map[string]routes.Peer{"stays": stays.peer()}, map[netip.Prefix]routes.Route{vip4: to("stays"), pool4: to("stays")}))
			both := map[netip.Prefix][]netip.Addr{vip4: {stays.link.node}, pool4: {stays.link.node}}
			stays.kernel(t, 4, both)
			since := stays.since(t, "node")
			monitor, err := stays.place.Monitor(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer monitor.Stop()
			change := func(p *routes.Peer, prefixes map[netip.Prefix]routes.Route) {
				t.Helper()
				d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"moves": p}, Routes: prefixes})
			}
			all := map[netip.Prefix]routes.Route{vip4: to("stays", "moves"), pool4: to("stays", "moves")}
			announced := map[netip.Prefix][]netip.Addr{vip4: {moves.link.node}, pool4: {moves.link.node}}

			p := moves.peer()
			change(&p, all)
			d.up(t, "moves")
			moves.kernel(t, 4, announced)
			first := moves.since(t, "node")

			p.ConnectTime = 2 * time.Second
			change(&p, nil)
			moves.still(t, "node", first)

			p.IPv6, p.NextHop6, p.HoldTime, p.KeepaliveTime = true, moves.node6, 30*time.Second, 10*time.Second
			n := moves.neighbor()
			n.IPv4, n.IPv6 = true, true
			moves.neighbors(t, n)
			change(&p, map[netip.Prefix]routes.Route{vip6: to("moves")})
			moves.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {moves.node6}})
			moves.kernel(t, 4, announced)
			if s, err := moves.Sessions(t.Context()); err != nil || s["node"].Hold != 30*time.Second {
				t.Errorf("the new session's hold time is %v, want 30s; %v", s["node"].Hold, err)
			}

			change(nil, map[netip.Prefix]routes.Route{vip4: to("stays"), pool4: to("stays"), vip6: nil})
			moves.kernel(t, 4, map[netip.Prefix][]netip.Addr{})
			moves.kernel(t, 6, map[netip.Prefix][]netip.Addr{})
			stays.kernel(t, 4, both)
			stays.still(t, "node", since)
			if now := stays.since(t, "node"); now.Updates != since.Updates || now.Updates == 0 {
				t.Errorf("the other router has received %d updates, had received %d", now.Updates, since.Updates)
			}
			if e := monitor.Events(); len(e) > 0 {
				t.Errorf("the other router changed routes: %+v", e)
			}
			if s, _ := d.has("stays"); s.Changes != 1 {
				t.Errorf("the other session: %+v", s)
			}
		})
	}
}

// TestNextHopChanges: a changed next hop of the other family reaches the router without a new session.
func TestNextHopChanges(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		n := r.neighbor()
		n.IPv4, n.IPv6 = true, true
		r.neighbors(t, n)
		f.node.Address(t, "eth0", "2001:db8:1::3/64")
		d := startNode(t, f.node)
		p := r.peer()
		p.IPv6, p.NextHop6 = true, r.node6
		d.apply(t, wanted(map[string]routes.Peer{"r": p}, map[netip.Prefix]routes.Route{vip6: to("r")}))
		r.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {r.node6}})
		since := r.since(t, "node")
		p.NextHop6 = addr("2001:db8:1::3")
		d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"r": &p}})
		r.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {p.NextHop6}})
		r.still(t, "node", since)
	})
}

// TestDown: the session goes down at once, even while a change is applied, with the reason, and comes up again by
// itself.
func TestDown(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		r.neighbors(t, r.neighbor())
		d := startNode(t, f.node)
		d.apply(t, wanted(map[string]routes.Peer{"r": r.peer()}, map[netip.Prefix]routes.Route{vip4: to("r")}))
		d.up(t, "r")
		d.order(t, order{Busy: true, Down: []string{"r", "BFD: no packets for 300ms"}})
		s := d.session(t, "r", "down", func(s routes.Session) bool { return s.State != routes.SessionEstablished })
		if s.Reason != routes.BFDWentDown || s.Message != "BFD: no packets for 300ms" {
			t.Errorf("down with %s: %s", s.Reason, s.Message)
		}
		s = d.up(t, "r")
		if s.Reason != routes.BFDWentDown || s.Changes != 2 {
			t.Errorf("up again, but not with why it was down: %+v", s)
		}
		r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}})
	})
}

// TestReaddRejected: a peer that GoBGP had, and then rejects, is retried until GoBGP accepts it.
func TestReaddRejected(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bird")
	r := f.routers[0]
	r.neighbors(t, r.neighbor())
	d := startNode(t, f.node)
	d.apply(t, wanted(map[string]routes.Peer{"r": r.peer()}, map[netip.Prefix]routes.Route{vip4: to("r")}))
	d.up(t, "r")
	d.order(t, order{Lose: "r"})
	d.fails(t, "r", routes.NotConfigured)
	if s := d.up(t, "r"); s.Changes != 2 {
		t.Errorf("up again: %+v", s)
	}
	r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}})
}

// TestRouterEndsSession: the router ends the session; the reason contains its message.
func TestRouterEndsSession(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		r.neighbors(t, r.neighbor())
		d := startNode(t, f.node)
		d.apply(t, wanted(map[string]routes.Peer{"r": r.peer()}, nil))
		d.up(t, "r")
		r.neighbors(t)
		s := d.fails(t, "r", routes.Rejected)
		if !strings.Contains(s.Message, "cease") {
			t.Errorf("not the router's message: %s", s.Message)
		}
		d.session(t, "r", "rejected", func(s routes.Session) bool {
			return s.Reason == routes.Refused || s.Reason == routes.Rejected && s.Changes == 1
		})
		r.neighbors(t, r.neighbor())
		d.up(t, "r")
	})
}

// noPref matches a LOCAL_PREF of 0 in the output of BIRD and FRR. Path.LocalPref is 0 also if there is none.
var noPref = regexp.MustCompile(`BGP\.local_pref: 0\n|"locPrf":0\b`)

// TestLeave: a peer without graceful restart is asked to prefer other paths, an internal one also by the lowest
// LOCAL_PREF, and then receives the withdrawals; a peer with graceful restart receives nothing.
func TestLeave(t *testing.T) {
	t.Parallel()
	for _, kinds := range [][]string{{"bird", "frr", "frr"}, {"frr", "bird", "bird"}} {
		t.Run(kinds[0]+" is internal", func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, kinds...)
			internal, external, graceful := f.routers[0], f.routers[1], f.routers[2]
			internal.conf.ASN = nodeASN
			for _, r := range f.routers {
				r.neighbors(t, r.neighbor())
			}
			d := startNode(t, f.node)
			in, p := internal.peer(), graceful.peer()
			in.PeerASN, p.GracefulRestart = nodeASN, true
			attributes := view.Attributes{LocalPref: 300, Communities: view.NewCommunitySet(65001<<16 | 7)}
			prefixes := map[netip.Prefix]routes.Route{vip4: {"internal": attributes, "external": attributes, "graceful": attributes}}
			d.apply(t, wanted(map[string]routes.Peer{"internal": in, "external": external.peer(), "graceful": p}, prefixes))
			for _, r := range f.routers {
				r.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {r.link.node}})
			}
			internal.path(t, vip4, func(p router.Path) bool { return p.LocalPref == 300 })
			left := make(chan error, 1)
			go func() {
				_, err := d.try(order{Leave: true})
				left <- err
			}()
			var both sync.WaitGroup // at the same time: the state lasts for three seconds
			for _, r := range f.routers[:2] {
				both.Go(func() {
					waitPath(t, r, vip4, func(p router.Path) bool {
						shut := slices.ContainsFunc(p.Communities, func(c string) bool { return c == "65535:0" || c == "graceful-shutdown" })
						return shut && len(p.Communities) == 2 && (r == external || noPref.MatchString(p.Text))
					})
				})
			}
			both.Wait()
			if err := <-left; err != nil {
				t.Fatal(err)
			}
			internal.kernel(t, 4, map[netip.Prefix][]netip.Addr{})
			external.kernel(t, 4, map[netip.Prefix][]netip.Addr{})
			d.kill()
			graceful.kernel(t, 4, map[netip.Prefix][]netip.Addr{vip4: {graceful.link.node}})
			graceful.path(t, vip4, func(p router.Path) bool { return len(p.Communities) == 1 })
		})
	}
}
