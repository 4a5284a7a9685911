package link_test

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// The two ways to make an address local; a round adds one address and removes it (docs/design/vip-local-route.md).

func BenchmarkLocalRoute(b *testing.B) {
	l := open(b, netspace.New(b))
	for b.Loop() {
		if _, err := l.Add(vip); err != nil {
			b.Fatal(err)
		}
		if _, err := l.Remove(vip); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInterfaceAddress(b *testing.B) {
	s := netspace.New(b)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "vips"
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := s.Handle.LinkAdd(bridge); err != nil {
		b.Fatal(err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: vip.AsSlice(), Mask: net.CIDRMask(32, 32)}}
	for b.Loop() {
		if err := s.Handle.AddrAdd(bridge, addr); err != nil {
			b.Fatal(err)
		}
		if err := s.Handle.AddrDel(bridge, addr); err != nil {
			b.Fatal(err)
		}
	}
}
