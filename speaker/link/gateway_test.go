package link_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// TestGateways finds the next hops of every table and family, including multipath routes and next hops of the other
// family, each once.
func TestGateways(t *testing.T) {
	node := netspace.New(t)
	netspace.Join(t, netspace.New(t), "eth0", "192.0.2.2/24", node, "eth0", "192.0.2.1/24")
	node.Address(t, "eth0", "2001:db8:1::1/64")
	l := open(t, node)
	want := func(texts ...string) {
		t.Helper()
		var addrs []netip.Addr
		for _, text := range texts {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		if got, err := l.Gateways(); err != nil || !slices.Equal(got, addrs) {
			t.Errorf("Gateways = %v, %v; want %v", got, err, addrs)
		}
	}
	want()
	ip(t, node, "route", "add", "default", "via", "192.0.2.254")
	ip(t, node, "route", "add", "198.51.100.0/24", "via", "192.0.2.254")
	ip(t, node, "route", "add", "203.0.113.0/24", "table", "100", "nexthop", "via", "192.0.2.251", "nexthop", "via", "192.0.2.252")
	ip(t, node, "-6", "route", "add", "default", "via", "2001:db8:1::fe")
	ip(t, node, "-6", "route", "add", "2001:db8:2::/64", "via", "fe80::1", "dev", "eth0")
	ip(t, node, "route", "add", "203.0.114.0/24", "via", "inet6", "2001:db8:1::fd")
	want("192.0.2.251", "192.0.2.252", "192.0.2.254", "2001:db8:1::fd", "2001:db8:1::fe")
	ip(t, node, "route", "del", "default")
	want("192.0.2.251", "192.0.2.252", "192.0.2.254", "2001:db8:1::fd", "2001:db8:1::fe")
	ip(t, node, "route", "del", "198.51.100.0/24")
	want("192.0.2.251", "192.0.2.252", "2001:db8:1::fd", "2001:db8:1::fe")
}
