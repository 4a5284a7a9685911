package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
	"github.com/ironlb/ironlb/test/rare"
)

// attributes are the attributes that a router receives; localPref only on internal sessions.
type attributes struct {
	communities, large []string
	localPref          uint32
}

func (w attributes) check(p router.Path, internal bool) error {
	if !slices.Equal(p.Communities, w.communities) || !slices.Equal(p.LargeCommunities, w.large) || internal && p.LocalPref != w.localPref {
		return fmt.Errorf("got %q %q %d, want %+v", p.Communities, p.LargeCommunities, p.LocalPref, w)
	}
	return nil
}

// TestAttributes: a /32 and a /24 of one address, and a /128 and a /64, have attributes of their own. External and
// internal peers receive exactly these. The attributes of several advertisements of one prefix are combined, and a
// change of them resets no session.
func TestAttributes(t *testing.T) {
	before := initial(t)
	// Internal sessions of both families, in addition to the external ones of IPv4.
	for _, r := range tors {
		internal := func(n *router.Neighbor) { n.ASN, n.IPv4, n.IPv6 = routerASN, true, true }
		r.configure(t, func(c *router.Config) { c.Neighbors = append(c.Neighbors, r.neighbors6(internal)...) })
		spec := r.peer("6", "dualStackAddressFamily: true")
		apply(t, "BGPPeer/"+r.name6(), strings.Replace(spec, fmt.Sprint(nodeASN), fmt.Sprint(routerASN), 1))
	}
	up(t)
	apply(t, "Community/names", `{communities: [{name: blue, value: "65001:77"}, {name: big, value: "large:65001:7:7"}]}`)
	apply(t, "BGPAdvertisement/routed", `{ipAddressPools: [routed], localPref: 300, communities: ["65001:1", blue, "large:65001:1:2"]}`)
	apply(t, "BGPAdvertisement/more", `{ipAddressPools: [routed], localPref: 300, communities: ["65001:2", big]}`)
	apply(t, "BGPAdvertisement/aggregate", `{ipAddressPools: [routed], aggregationLength: 24, aggregationLengthV6: 64, localPref: 50, communities: ["65001:24"]}`)
	narrow := attributes{communities: []string{"65001:1", "65001:2", "65001:77"}, large: []string{"65001:1:2", "65001:7:7"}, localPref: 300}
	wide := attributes{communities: []string{"65001:24"}, localPref: 50}
	seen(t, host(vip), narrow)
	seen(t, host(vip6), narrow)
	seen(t, netip.PrefixFrom(vip, 24).Masked(), wide)
	seen(t, netip.PrefixFrom(vip6, 64).Masked(), wide)

	second := established(t)
	remove(t, "BGPAdvertisement/more")
	seen(t, host(vip), attributes{communities: []string{"65001:1", "65001:77"}, large: []string{"65001:1:2"}, localPref: 300})
	seen(t, netip.PrefixFrom(vip, 24).Masked(), wide)
	same(t, before)
	same(t, second)
	asked(t, vip)
}

// seen waits until every router has received this for a prefix, from each node and over each session of its family.
func seen(t *testing.T, prefix netip.Prefix, want attributes) {
	t.Helper()
	for _, r := range tors {
		r.rib(t, prefix, fmt.Sprintf("with %+v", want), func(by map[netip.Addr]router.Path) error {
			count := len(cluster.Nodes)
			if prefix.Addr().Is4() {
				count *= 2 // by both sessions
			}
			if len(by) != count {
				return fmt.Errorf("there are %d paths, want %d", len(by), count)
			}
			for from, p := range by {
				if err := want.check(p, from.Is6()); err != nil {
					return fmt.Errorf("from %v: %w", from, err)
				}
			}
			return nil
		})
	}
}

// TestSelection: an advertisement may select one peer, some nodes and some Services. An aggregate stays until its last
// address is withdrawn.
func TestSelection(t *testing.T) {
	before := initial(t)
	one, other := vip.Next(), vip.Next().Next()
	range28 := netip.PrefixFrom(vip, 28).Masked()
	apply(t, "BGPAdvertisement/routed", `{ipAddressPools: [routed], serviceSelectors: [{matchExpressions: [{key: app, operator: In, values: [web, third]}]}]}`)
	node := cluster.Node(0)
	apply(t, "BGPAdvertisement/some", fmt.Sprintf(`{ipAddressPools: [routed], peers: [%s], aggregationLength: 28,
		serviceSelectors: [{matchExpressions: [{key: app, operator: In, values: [one, other]}]}], nodeSelectors: [{matchLabels: {kubernetes.io/hostname: %s}}]}`,
		tors[0].name, node.Name))
	serve(t, "one", service("one", one, vip6.Next(), ""))
	serve(t, "other", service("other", other, vip6.Next().Next(), ""))
	tors[0].routed(t, range28, node.Addr)
	scene := func() {
		t.Helper()
		for _, r := range tors {
			r.routed(t, host(vip), nodes(true)...)
			r.routed(t, host(one))
			r.routed(t, host(other))
		}
		tors[1].routed(t, range28)
	}
	scene()
	monitor, err := tors[0].place.Monitor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer monitor.Stop()
	end(t, "service/one")
	serve(t, "third", service("third", other.Next(), vip6.Next(), ""))
	routed(t, host(other.Next()), nodes(true)...) // advertised after the change of the first
	tors[0].routed(t, range28, node.Addr)
	end(t, "service/third")
	for _, e := range monitor.Events() {
		if e.Prefix == range28 {
			t.Errorf("the aggregate changed while an address under it stayed: %v", e)
		}
	}
	scene()
	end(t, "service/other")
	tors[0].routed(t, range28)
	scene()
	same(t, before)
}

// TestAggregateEndsHere: packets for an unallocated address of an announced prefix are dropped on a node. They do not
// loop between node and router until their TTL expires. The blackhole route is removed with the prefix.
func TestAggregateEndsHere(t *testing.T) {
	rare.Test(t)
	prefix := netip.MustParsePrefix("203.0.114.0/28") // not of the LAN: nodes have only their default route for it, to the first router
	addr, unallocated := prefix.Addr().Next(), netip.MustParseAddr("203.0.114.9")
	before := initial(t)
	apply(t, "IPAddressPool/far", fmt.Sprintf("{addresses: [%q]}", prefix))
	apply(t, "BGPAdvertisement/far", "{ipAddressPools: [far], aggregationLength: 28}")
	serve(t, "far", strings.Replace(strings.Replace(service("far", addr, vip6.Next(), ""), ","+vip6.Next().String(), "", 1), "RequireDualStack", "SingleStack", 1))
	routed(t, prefix, nodes(true)...)
	asked(t, addr)
	for _, r := range tors {
		out, err := r.client.Exec(t.Context(), "ping", "-c", "3", "-i", "0.2", "-W", "1", unallocated.String())
		if err == nil || strings.Contains(out+err.Error(), "Time to live exceeded") || strings.Contains(out+err.Error(), "Unreachable") {
			t.Errorf("%s: ping %v: %v %s; want it lost silently", r.name, unallocated, err, out)
		}
	}
	for _, n := range cluster.Nodes {
		// Another program deletes it: it is restored.
		if _, err := n.Exec(t.Context(), "ip", "route", "del", "blackhole", prefix.String(), "proto", "73"); err != nil {
			t.Fatal(err)
		}
		blackholes(t, n, prefix)
	}
	end(t, "service/far")
	routed(t, prefix)
	for _, n := range cluster.Nodes {
		blackholes(t, n)
	}
	same(t, before)
}

// blackholes waits until the node has these blackhole routes.
func blackholes(t *testing.T, n *lab.Node, want ...netip.Prefix) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("%s has the blackholes %v", n.Name, want), func(ctx context.Context) error {
		out, err := n.Exec(ctx, "ip", "route", "show", "type", "blackhole", "proto", "73")
		if err == nil && strings.Count(out, "blackhole ") != len(want) || len(want) > 0 && !strings.Contains(out, want[0].String()) {
			err = fmt.Errorf("it has %q", out)
		}
		return err
	})
}
