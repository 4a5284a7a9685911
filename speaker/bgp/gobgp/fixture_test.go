package gobgp

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/router"
)

const patience = 60 * time.Second

const (
	nodeASN   = 65001
	routerASN = 65002
)

var (
	nodeID = addr("203.0.113.9")

	vip4, vip6   = pfx("192.0.2.1/32"), pfx("2001:db8:f::1/128")
	pool4, pool6 = pfx("192.0.2.0/24"), pfx("2001:db8:f::/64")
)

func addr(s string) netip.Addr  { return netip.MustParseAddr(s) }
func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// link is a wire between the node and a router, with an address of each family at both ends.
type link struct {
	router, router6, node, node6 netip.Addr
}

func linkNumber(i int) link {
	a := func(format string, n int) netip.Addr { return addr(fmt.Sprintf(format, n)) }
	return link{a("198.51.100.%d", 16*i+1), a("2001:db8:%d::1", i+1), a("198.51.100.%d", 16*i+2), a("2001:db8:%d::2", i+1)}
}

// far is a router of a test.
type far struct {
	router.Router
	link
	kind  string
	place router.Place
	space *netspace.Space
	conf  router.Config
}

// fixture is a node without a driver, and the routers that it has links to.
type fixture struct {
	node    *netspace.Space
	routers []*far
}

// newFixture creates a node and a router of each of these kinds, without a neighbor.
func newFixture(t testing.TB, kinds ...string) *fixture {
	t.Helper()
	f := &fixture{node: netspace.New(t)}
	for i, kind := range kinds {
		r := &far{link: linkNumber(i), kind: kind, space: netspace.New(t)}
		netspace.Join(t, f.node, fmt.Sprintf("eth%d", i), r.link.node.String()+"/28", r.space, "eth0", r.link.router.String()+"/28")
		f.node.Address(t, fmt.Sprintf("eth%d", i), r.node6.String()+"/64")
		r.space.Address(t, "eth0", r.router6.String()+"/64")
		r.place = router.In(t, r.space)
		r.conf = router.Config{ASN: routerASN, ID: addr(fmt.Sprintf("203.0.113.%d", i+1))}
		var err error
		if r.Router, err = router.Kinds[kind](t.Context(), r.place, r.conf); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("router %s:\n%s", kind, r.Log())
			}
			r.Stop()
		})
		f.routers = append(f.routers, r)
	}
	return f
}

// each runs a test with a router of each kind.
func each(t *testing.T, test func(t *testing.T, f *fixture, r *far)) {
	t.Parallel()
	for kind := range router.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, kind)
			test(t, f, f.routers[0])
		})
	}
}

// neighbors configures exactly these neighbors on the router.
func (r *far) neighbors(t testing.TB, n ...router.Neighbor) {
	t.Helper()
	r.conf.Neighbors = n
	if err := r.Configure(t.Context(), r.conf); err != nil {
		t.Fatal(err)
	}
	// FRR refuses connections until it has loaded its configuration, and GoBGP then pauses for five seconds.
	eventually.True(t, patience, "the router listens to its neighbors", func() bool {
		s, err := r.Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range n {
			if state := s[n.Name].State; state == "" || state == "Idle" {
				return false
			}
		}
		return true
	})
}

// neighbor returns the router's default configuration of the node over IPv4.
func (r *far) neighbor() router.Neighbor {
	return router.Neighbor{Name: "node", Address: r.link.node, ASN: nodeASN}
}

// peer returns the node's default configuration of the router over IPv4.
func (r *far) peer() routes.Peer {
	return routes.Peer{Address: r.link.router, Port: 179, MyASN: nodeASN, PeerASN: routerASN, IPv4: true, ConnectTime: time.Second}
}

func (r *far) peer6() routes.Peer {
	p := r.peer()
	p.Address, p.IPv4, p.IPv6 = r.router6, false, true
	return p
}

// pair adds an address to each end of the link for session i (0 to 4) of a family, and returns the configurations of
// the session on the router and on the node: between these two addresses. The node would choose another source address.
func (r *far) pair(t testing.TB, f *fixture, i int, six bool) (router.Neighbor, routes.Peer) {
	t.Helper()
	n, p, bits := r.neighbor(), r.peer(), "/28"
	near, far := addr(fmt.Sprintf("198.51.100.%d", 3+i)), addr(fmt.Sprintf("198.51.100.%d", 14-i))
	if six {
		p, bits = r.peer6(), "/64"
		near, far = addr(fmt.Sprintf("2001:db8:1::%x", 0x10+i)), addr(fmt.Sprintf("2001:db8:1::%x", 0x20+i))
	}
	f.node.Address(t, "eth0", near.String()+bits)
	r.space.Address(t, "eth0", far.String()+bits)
	n.Address, n.Local, p.Address, p.Source = near, far, far, near
	return n, p
}

// wanted returns a full set.
func wanted(peers map[string]routes.Peer, prefixes map[netip.Prefix]routes.Route) routes.Change {
	c := routes.Change{Full: true, RouterID: nodeID, Peers: map[string]*routes.Peer{}, Routes: prefixes}
	for name, p := range peers {
		c.Peers[name] = &p
	}
	return c
}

// to returns a route without attributes to these peers.
func to(names ...string) routes.Route {
	r := routes.Route{}
	for _, n := range names {
		r[n] = view.Attributes{}
	}
	return r
}

// kernel waits until the router's kernel has exactly these routes of a family, each over these next hops.
func (r *far) kernel(t testing.TB, family int, want map[netip.Prefix][]netip.Addr) {
	t.Helper()
	eventually.Nil(t, patience, fmt.Sprintf("%s's kernel has %v", r.kind, want), func(context.Context) error {
		have := r.routes(t, family)
		as := len(have) == len(want)
		for _, route := range have {
			via, ok := want[route.Prefix]
			as = as && ok && slices.Equal(via, route.Via)
		}
		return eventually.Unless(as, "it has %+v", have)
	})
}

func (r *far) routes(t testing.TB, family int) []router.Route {
	t.Helper()
	have, err := r.Routes(context.Background(), family)
	if err != nil {
		t.Fatal(err)
	}
	return have
}

// path waits for the only path of the router to a prefix.
func (r *far) path(t testing.TB, prefix netip.Prefix, ok func(router.Path) bool) {
	t.Helper()
	eventually.Nil(t, patience, fmt.Sprintf("%s's path of %v is as wanted", r.kind, prefix), func(context.Context) error {
		have, err := r.RIB(context.Background(), prefix.String())
		if err != nil {
			t.Fatal(err)
		}
		return eventually.Unless(len(have) == 1 && ok(have[0]), "it has %+v", have)
	})
}

// waitPath is path for a goroutine of the test.
func waitPath(t testing.TB, r *far, prefix netip.Prefix, ok func(router.Path) bool) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		have, err := r.RIB(ctx, prefix.String())
		switch {
		case err != nil:
			t.Errorf("%s's path of %v is not as wanted within %v: %v, %v", r.kind, prefix, patience, have, err)
			return
		case len(have) == 1 && ok(have[0]):
			return
		}
	}
}

// since returns the router's session with a neighbor, which is up.
func (r *far) since(t testing.TB, name string) router.Session {
	t.Helper()
	s, err := r.Sessions(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if !s[name].Established {
		t.Fatalf("%s: no session with %s: %+v", r.kind, name, s[name])
	}
	return s[name]
}

// still fails the test if the session has changed.
func (r *far) still(t testing.TB, name string, before router.Session) {
	t.Helper()
	if now := r.since(t, name); !now.Same(before) {
		t.Errorf("%s: the session with %s is of %v (number %d), was of %v (number %d)", r.kind, name, now.Since, now.Count, before.Since, before.Count)
	}
}
