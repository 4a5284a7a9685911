package gobgp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/speaker/routes"
)

// TestLinkLocalTwins: two routers with one link-local address, each on its own interface, have a session each; the end
// of one leaves the other up.
func TestLinkLocalTwins(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bird", "frr")
	peers, all := map[string]routes.Peer{}, map[netip.Prefix]routes.Route{vip6: to("bird", "frr")}
	for i, r := range f.routers {
		f.node.Address(t, fmt.Sprintf("eth%d", i), "fe80::a1/64")
		r.space.Address(t, "eth0", "fe80::b1/64")
		n, p := r.neighbor(), r.peer6()
		n.Address, n.IPv4, n.IPv6 = addr("fe80::a1%eth0"), false, true
		p.Address, p.NextHop6 = addr(fmt.Sprintf("fe80::b1%%eth%d", i)), r.node6
		r.neighbors(t, n)
		peers[r.kind] = p
	}
	d := startNode(t, f.node)
	d.apply(t, wanted(peers, all))
	for _, r := range f.routers {
		d.up(t, r.kind)
		r.kernel(t, 6, map[netip.Prefix][]netip.Addr{vip6: {r.node6}})
	}
	bird, frr := f.routers[0], f.routers[1]
	before := frr.since(t, "node")
	d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"bird": nil}})
	bird.kernel(t, 6, nil)
	frr.still(t, "node", before)
}
