package link_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// TestHostAddresses excludes loopback and link-local addresses, ours, and those of kube-proxy's ipvs mode.
func TestHostAddresses(t *testing.T) {
	node := netspace.New(t)
	netspace.Join(t, netspace.New(t), "eth0", "192.0.2.2/24", node, "eth0", "192.0.2.1/24")
	l := open(t, node)
	node.Address(t, "eth0", "2001:db8:1::1/64")
	node.Address(t, "eth0", "169.254.3.4/16")
	node.Address(t, "lo", "198.51.100.7/32")
	wantChange(t, l.Add, vip, true)
	wantChange(t, l.Add, vip6, true)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "kube-ipvs0" // a bridge here: this kernel may lack dummy
	if err := node.Handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	node.Address(t, "kube-ipvs0", "203.0.113.200/32")
	got, err := l.HostAddresses()
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:1::1")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("HostAddresses = %v, %v; want %v", got, err, want)
	}
}
