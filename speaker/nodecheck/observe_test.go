package nodecheck_test

import (
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/nodecheck"
)

// The routes to a Pod by its own link, behind a bridge, to the node itself, and to nowhere: without a route, and by
// routes that refuse, as Calico has for unassigned addresses of a node's ranges.
func TestRoutes(t *testing.T) {
	node, pod := netspace.New(t), netspace.New(t)
	netspace.Join(t, pod, "eth0", "192.0.2.2/24", node, "cali1", "192.0.2.1/24")
	bridged, six := netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("2001:db8::2")
	nowhere := netip.MustParseAddr("203.0.113.1")
	link, own := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1")
	node.Must(t, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "cni0"
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		return nil
	})
	node.Address(t, "cni0", "198.51.100.1/24")
	node.Address(t, "cni0", "2001:db8::1/64")
	node.Must(t, func() error {
		bridge, err := netlink.LinkByName("cni0")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(bridge)
	})
	node.Must(t, func() error {
		want := map[netip.Addr]nodecheck.Route{}
		addrs := []netip.Addr{link, own, bridged, six, nowhere}
		for refuses, kind := range map[string]int{
			"203.0.113.64": unix.RTN_BLACKHOLE, "203.0.113.128": unix.RTN_PROHIBIT, "203.0.113.192": unix.RTN_UNREACHABLE,
			"2001:db8:64::": unix.RTN_BLACKHOLE, "2001:db8:128::": unix.RTN_PROHIBIT,
		} {
			addr := netip.MustParseAddr(refuses)
			mask := net.CIDRMask(addr.BitLen()-6, addr.BitLen())
			route := &netlink.Route{Dst: &net.IPNet{IP: addr.AsSlice(), Mask: mask}, Type: kind}
			if err := netlink.RouteAdd(route); err != nil {
				return err
			}
			addrs, want[addr.Next()] = append(addrs, addr.Next()), nodecheck.Route{}
		}
		got, err := (&nodecheck.Routes{}).To(addrs)
		maps.Copy(want, map[netip.Addr]nodecheck.Route{
			link: {Interface: "cali1"}, own: {Interface: "lo", Host: true}, nowhere: {},
			bridged: {Interface: "cni0", Bridge: true}, six: {Interface: "cni0", Bridge: true},
		})
		if !maps.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		return err
	})
}

// Of many addresses each call finds the routes of new ones and of some others, round robin.
func TestRoutesRoundRobin(t *testing.T) {
	netspace.New(t).Must(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		_, all, _ := net.ParseCIDR("198.18.0.0/16")
		if err := netlink.RouteAdd(&netlink.Route{Dst: all, LinkIndex: lo.Attrs().Index}); err != nil {
			return err
		}
		var addrs []netip.Addr
		for i := range 600 {
			addrs = append(addrs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
		}
		var routes nodecheck.Routes
		through := func(addrs []netip.Addr) int {
			found, err := routes.To(addrs)
			if err != nil || len(found) != len(addrs) {
				t.Fatalf("%d routes of %d: %v", len(found), len(addrs), err)
			}
			n := 0
			for _, route := range found {
				if route.Interface == "lo" {
					n++
				}
			}
			return n
		}
		if n := through(addrs[1:]); n != 599 {
			t.Errorf("%d of 599 addresses have a route, want all", n)
		}
		if err := netlink.RouteReplace(&netlink.Route{Dst: all, Type: unix.RTN_BLACKHOLE}); err != nil {
			return err
		}
		var left []int
		for range 3 {
			left = append(left, through(addrs))
		}
		if left[0] == 0 || left[0] == 600 || left[2] != 0 {
			t.Errorf("after the route is gone, %v addresses have one; want some after the first call, none after the third", left)
		}
		return nil
	})
}
