package l2

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/test/eventually"
)

// stack adds an interface and sets it up; the test is skipped if the kernel does not support its kind.
func stack(t *testing.T, space *netspace.Space, l netlink.Link) {
	t.Helper()
	if err := space.Handle.LinkAdd(l); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no interfaces of kind %s", l.Type())
	} else if err != nil {
		t.Fatalf("add %s: %v", l.Attrs().Name, err)
	}
}

func up(t *testing.T, space *netspace.Space, name string) {
	t.Helper()
	if err := space.Handle.LinkSetUp(linkOf(t, space, name)); err != nil {
		t.Fatal(err)
	}
	waitCarrier(t, space, name)
}

func named(name string) netlink.LinkAttrs {
	at := netlink.NewLinkAttrs()
	at.Name = name
	return at
}

// A request in a VLAN is answered there, and only there.
func TestVLAN(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		for _, end := range []struct {
			space *netspace.Space
			addrs []string
		}{{s.node, []string{"198.51.100.1/24", "2001:db8:7::1/64"}}, {s.segment.host, []string{"198.51.100.200/24", "2001:db8:7::c8/64"}}} {
			at := named("eth0.7")
			at.ParentIndex = linkOf(t, end.space, "eth0").Attrs().Index
			stack(t, end.space, &netlink.Vlan{LinkAttrs: at, VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
			up(t, end.space, "eth0.7")
			for _, a := range end.addrs {
				end.space.Address(t, "eth0.7", a)
			}
		}
		tagged := netip.MustParseAddr("198.51.100.4")
		if s.family == ipv6 {
			tagged = netip.MustParseAddr("2001:db8:7::4")
		}
		held := s.announce(t, map[netip.Addr]ownership.Announcement{tagged: on("eth0.7"), s.vip[0]: on("eth0")})
		if len(held) != 2 || held[tagged][0] != "eth0.7" {
			t.Fatalf("answers on %v", held)
		}
		s.transmit(t, s.request(s.host, tagged)) // untagged: not answered
		s.answered(t, s.vip[0])
		other := *s
		other.port = "eth0.7"
		other.learns(t, tagged)
		s.learns(t, s.vip[0])
	})
}

// A bond answers, not its ports; when it selects another port, all addresses are announced again there.
func TestBond(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		netspace.Join(t, s.node, "eth1", "198.51.100.1/24", s.segment.host, "eth1", "198.51.100.2/24")
		bond := netlink.NewLinkBond(named("bond0"))
		bond.Mode, bond.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, 10
		stack(t, s.node, bond)
		stack(t, s.segment.host, &netlink.Bridge{LinkAttrs: named("br0")})
		for _, name := range []string{"eth0", "eth1"} {
			port := linkOf(t, s.node, name)
			for _, err := range []error{s.node.Handle.LinkSetDown(port), s.node.Handle.LinkSetMaster(port, linkOf(t, s.node, "bond0")),
				s.segment.host.Handle.LinkSetMaster(linkOf(t, s.segment.host, name), linkOf(t, s.segment.host, "br0"))} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		up(t, s.segment.host, "br0")
		up(t, s.node, "bond0")
		for _, a := range []string{"203.0.113.201/24", "2001:db8::c9/64"} {
			s.segment.host.Address(t, "br0", a)
		}
		for _, name := range []string{"eth0", "eth1"} { // only the bridge may have addresses, not its ports
			list, err := addresses(s.segment.host, linkOf(t, s.segment.host, name), netlink.FAMILY_ALL)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range list {
				if err := s.segment.host.Handle.AddrDel(linkOf(t, s.segment.host, name), &a); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.port, s.on, s.self = "br0", "bond0", mac(s.node.MAC(t, "bond0"))
		s.node.Must(t, func() error {
			if _, err := s.announcer.Announce(map[netip.Addr]ownership.Announcement{s.vip[0]: on("eth0")}); err == nil || !strings.Contains(err.Error(), "name bond0") {
				t.Errorf("error %v for a port", err)
			}
			return nil
		})
		s.announcer.Refresh()
		s.hold(t, s.vip[0])
		s.learns(t, s.vip[0])

		active := linkOf(t, s.node, "bond0").(*netlink.Bond).ActiveSlave
		cut := "eth0"
		if linkOf(t, s.node, "eth1").Attrs().Index == active {
			cut = "eth1"
		}
		per := float64(len(steps) - s.family) // the reply form is ARP's
		announced := func() float64 { return s.count(t, "announcements_total", s.codec.family()) }
		eventually.True(t, patience, "the announcements are over", func() bool { return announced() == per })
		if err := s.segment.host.Handle.LinkSetDown(linkOf(t, s.segment.host, cut)); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, patience, "the bond uses its other port", func() bool {
			now := linkOf(t, s.node, "bond0").(*netlink.Bond).ActiveSlave
			return now != active && now > 0
		})
		s.announcer.Refresh()
		s.hold(t, s.vip[0])
		eventually.True(t, patience, "all is announced again", func() bool { return announced() == 2*per })
		s.learns(t, s.vip[0])
	})
}
