package l2

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

func TestForeignHostLearnsOurMAC(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0])
		s.learns(t, s.vip[0])
	})
}

func TestOnlyWhatIsOursIsAnswered(t *testing.T) {
	other := mac{2, 0, 0, 0, 0, 0x77}
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0], s.vip[1])
		to := func(dst mac, frame []byte) []byte { return slices.Concat(dst[:], frame[6:]) }
		ours := s.request(s.host, s.vip[0])
		s.transmit(t, s.request(s.host, s.vip[2]))        // not owned
		s.transmit(t, to(other, ours))                    // sent to another station
		s.transmit(t, to(mac{1, 0, 0x5e, 0, 0, 1}, ours)) // sent to a group other than the address's
		s.transmit(t, s.takeOver(s.peer, s.vip[2]))
		s.transmit(t, slices.Concat(ours[:12], []byte{0x81, 0, 0, 7}, ours[12:])) // VLAN 7, without an interface here
		s.answered(t, s.vip[1])                                                   // the last in order, and counted once it is sent
		eventually.True(t, patience, "the answer is counted", func() bool { return s.count(t, "answers_total", s.codec.family()) > 0 })
		if got := s.count(t, "answers_total", s.codec.family()); got != 1 {
			t.Errorf("%v answers, want 1", got)
		}
	})
}

// A neighbor that verifies its entry sends a request to this station only.
func TestUnicastRequest(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0])
		frame := s.request(s.host, s.vip[0])
		if s.family == ipv6 {
			frame = neighbor{dst: s.self, src: s.peer, from: s.host, to: s.vip[0], kind: typeSolicitation, target: s.vip[0]}.bytes()
		}
		copy(frame, s.self[:])
		s.transmit(t, frame)
		s.wantReply(t, s.vip[0])
	})
}

func TestSolicitationWithoutSourceOption(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv6)
	s.hold(t, s.vip[0])
	group := solicitedNode(s.vip[0])
	s.transmit(t, neighbor{dst: groupMAC(group), src: s.peer, from: s.host, to: group, kind: typeSolicitation, target: s.vip[0]}.bytes())
	s.wantReply(t, s.vip[0])
}

// The router flag is the kernel's value.
func TestRouterFlag(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv6)
	s.node.Sysctl(t, "net.ipv6.conf.all.forwarding", "1")
	s.hold(t, s.vip[0])
	s.transmit(t, s.request(s.host, s.vip[0]))
	want := neighbor{dst: s.peer, src: s.self, from: s.vip[0], to: s.host, kind: typeAdvertisement,
		flags: flagRouter | flagSolicited | flagOverride, target: s.vip[0], lladdr: s.self}
	if got, err := parseNeighbor(s.reply(t)); err != nil || got != want {
		t.Errorf("answer %+v, %v; want %+v", got, err, want)
	}
}

// An interface with a tentative link-local address, or with none, answers.
func TestNoLinkLocalAddress(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv6)
	link := linkOf(t, s.node, "eth0")
	addrs, err := addresses(s.node, link, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if err := s.node.Handle.AddrDel(link, &a); err != nil {
			t.Fatal(err)
		}
	}
	s.hold(t, s.vip[0])
	s.learns(t, s.vip[0])
	s.answered(t, s.vip[0])
}

func TestWithdrawnIsNotAnswered(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0], s.vip[1])
		s.answered(t, s.vip[0])
		s.hold(t, s.vip[1])
		s.transmit(t, s.request(s.host, s.vip[0]))
		s.answered(t, s.vip[1])
		s.hold(t)
		s.transmit(t, s.request(s.host, s.vip[0]))
		s.transmit(t, s.request(s.host, s.vip[1]))
		s.hold(t, s.vip[2])
		s.answered(t, s.vip[2])
	})
}

// 2,000 addresses are announced, each in its first round, and answered for.
func TestThousandsOfAddresses(t *testing.T) {
	if testing.Short() {
		t.Skip("2,000 addresses in a network namespace")
	}
	bothFamilies(t, func(t *testing.T, s *side) {
		const n = 2000
		first := "198.51.100.0"
		if s.family == ipv6 {
			first = "2001:db8::1:0"
		}
		addrs := addrsFrom(first, n)
		if err := s.conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		raw, err := s.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s.hold(t, addrs...)
		t.Logf("held after %v", time.Since(began))
		seen := map[netip.Addr]bool{}
		for len(seen) < n {
			s.next(t, "announcement of each", func(m message, _ []byte) bool {
				if !m.target.IsValid() {
					seen[m.sender] = true
				}
				return len(seen) == n
			})
		}
		t.Logf("announced after %v", time.Since(began))
		for _, i := range []int{0, 1, n / 2, n - 1} {
			s.answered(t, addrs[i])
		}
		s.transmit(t, s.request(s.host, addrs[n-1].Next())) // within the prefixes of the filter
		s.answered(t, addrs[7])
	})
}

func TestTakingOverCorrectsNeighbors(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.setNeighbor(t, s.vip[0], mac{2, 0, 0, 0, 0, 0x77})
		s.hold(t, s.vip[0])
		s.wantNeighbor(t, s.vip[0], s.self)
		// The request form in every step; the reply form once.
		request := must(s.codec.announcement(station{mac: s.self}, s.vip[0], asRequest))
		reply := must(s.codec.announcement(station{mac: s.self}, s.vip[0], asReply))
		requests, replies, wantReplies := 0, 0, 1
		if reply == nil {
			wantReplies = 0
		}
		for requests < 6 || replies < wantReplies {
			got := s.next(t, "announcement", func(m message, _ []byte) bool { return m.sender == s.vip[0] })
			switch {
			case slices.Equal(got, request):
				requests++
			case slices.Equal(got, reply):
				replies++
			default:
				t.Errorf("unexpected %x", got)
			}
		}
		if replies != wantReplies {
			t.Errorf("%d in the reply form, want %d", replies, wantReplies)
		}
	})
}

// An interface that goes down is closed, and opened again with announcements when it is up.
func TestInterfaceDownAndUp(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0])
		if err := s.node.Handle.LinkSetDown(linkOf(t, s.node, "eth0")); err != nil {
			t.Fatal(err)
		}
		s.waitWake(t)
		if held := s.announce(t, map[netip.Addr]ownership.Announcement{s.vip[0]: on("eth0")}); len(held) > 0 {
			t.Errorf("answers on %v, which is down", held)
		}
		if err := s.node.Handle.LinkSetUp(linkOf(t, s.node, "eth0")); err != nil {
			t.Fatal(err)
		}
		waitCarrier(t, s.node, "eth0")
		waitCarrier(t, s.segment.host, "eth0")
		s.setNeighbor(t, s.vip[0], mac{2, 0, 0, 0, 0, 0x77})
		s.announcer.Refresh()
		s.hold(t, s.vip[0])
		s.wantNeighbor(t, s.vip[0], s.self)
		s.answered(t, s.vip[0])
	})
}

// A carrier loss and recovery between two Announce calls: everything is announced again. The same holds for a change of
// the MAC.
func TestCarrierAndMACAreFollowed(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0])
		other := s.segment.host
		if err := other.Handle.LinkSetDown(linkOf(t, other, "eth0")); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, patience, "the node has no carrier", func() bool {
			return linkOf(t, s.node, "eth0").Attrs().RawFlags&unix.IFF_LOWER_UP == 0
		})
		if err := other.Handle.LinkSetUp(linkOf(t, other, "eth0")); err != nil {
			t.Fatal(err)
		}
		waitCarrier(t, s.node, "eth0")
		waitCarrier(t, other, "eth0")
		s.conn = s.socket(t, other, s.family) // the other socket still reports that the interface was down
		s.setNeighbor(t, s.vip[0], mac{2, 0, 0, 0, 0, 0x77})
		s.announcer.Refresh()
		s.hold(t, s.vip[0])
		s.wantNeighbor(t, s.vip[0], s.self)

		s.self = mac{2, 0, 0, 0, 0, 0x55}
		if err := s.node.Handle.LinkSetHardwareAddr(linkOf(t, s.node, "eth0"), s.self[:]); err != nil {
			t.Fatal(err)
		}
		s.announcer.Refresh()
		s.hold(t, s.vip[0])
		s.wantNeighbor(t, s.vip[0], s.self)
		s.answered(t, s.vip[0])
	})
}

// While the process is not fresh, it sends nothing.
func TestNotFreshIsSilent(t *testing.T) {
	for family := range families {
		t.Run(codecs[family].family(), func(t *testing.T) {
			var fresh atomic.Bool
			s := newSegment(t, func(c *Config) { c.Fresh = fresh.Load }).side(t, family)
			s.hold(t, s.vip[0])
			s.transmit(t, s.request(s.host, s.vip[0]))
			s.transmit(t, s.request(s.unspecified(), s.vip[0]))
			s.transmit(t, s.takeOver(s.peer, s.vip[0])) // would be defended
			s.waitWake(t)
			if n := s.count(t, "answers_total", s.codec.family()) + s.count(t, "announcements_total", s.codec.family()) +
				s.count(t, "defences_total", s.codec.family()); n != 0 {
				t.Errorf("%v frames sent", n)
			}
			fresh.Store(true)
			s.answered(t, s.vip[0])
		})
	}
}

func TestInterfacesAreChosen(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv4)
	third := netspace.New(t)
	netspace.Join(t, s.node, "eth1", "198.51.100.1/24", third, "eth0", "198.51.100.200/24")
	a := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, n}) }
	held := s.announce(t, map[netip.Addr]ownership.Announcement{
		a(4): on("eth0"), a(5): on("eth1"), a(6): on("absent", "eth0", "eth1"), a(8): on("absent"), vip6: on("eth1"),
	})
	want := map[netip.Addr][]string{a(4): {"eth0"}, a(5): {"eth1"}, a(6): {"eth0", "eth1"}, vip6: {"eth1"}}
	if !same(held, want) {
		t.Errorf("answers on %v, want %v", held, want)
	}
	s.transmit(t, s.request(s.host, a(5))) // only on eth1
	s.answered(t, a(6))
}

func TestLinks(t *testing.T) {
	s := join(t)
	third := netspace.New(t)
	netspace.Join(t, s.node, "eth1", "198.51.100.1/24", third, "eth0", "198.51.100.200/24")
	if err := third.Handle.LinkSetDown(linkOf(t, third, "eth0")); err != nil {
		t.Fatal(err)
	}
	want := []view.Link{{Name: "eth0", MTU: 1500, Subnets: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/64")}}}
	var got []view.Link
	eventually.True(t, patience, "only eth0 has carrier, and its link-local address can be used", func() bool {
		s.node.Must(t, func() (err error) { got, err = Links(); return err })
		return slices.EqualFunc(got, want, func(a, b view.Link) bool {
			return a.Name == b.Name && a.MTU == b.MTU && slices.Equal(a.Subnets, b.Subnets)
		})
	})
}

// TestLinksOfOneSubnet: of two interfaces in one subnet, that with the kernel's route has it: the one of the lower
// metric, not the first.
func TestLinksOfOneSubnet(t *testing.T) {
	s := join(t)
	third := netspace.New(t)
	netspace.Join(t, s.node, "eth1", "203.0.113.99/24", third, "eth0", "203.0.113.98/24")
	subnet := netip.MustParsePrefix("203.0.113.0/24")
	owner := func() string {
		var got []view.Link
		s.node.Must(t, func() (err error) { got, err = Links(); return err })
		name := ""
		for _, l := range got {
			if slices.Contains(l.Subnets, subnet) {
				name += l.Name
			} else if l.Elsewhere[subnet] != "" {
				name = l.Elsewhere[subnet] + " not " + l.Name + " " + name
			}
		}
		return name
	}
	eventually.True(t, patience, "both have carrier, and eth0 has the first route", func() bool { return owner() == "eth0 not eth1 eth0" })
	eth0 := linkOf(t, s.node, "eth0").Attrs().Index
	routes, err := s.node.Handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: eth0}, netlink.RT_FILTER_OIF)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst.String() != subnet.String() {
			continue
		}
		later := r
		later.Priority = 100
		if err := errors.Join(s.node.Handle.RouteDel(&r), s.node.Handle.RouteAdd(&later)); err != nil {
			t.Fatal(err)
		}
	}
	if got := owner(); got != "eth1 not eth0 eth1" {
		t.Errorf("with a higher metric of eth0: %q", got)
	}
}

// While the link-local address is tentative, the kernel solicits no neighbor, so nothing can be forwarded to it.
func TestLinksWithoutLinkLocalAddress(t *testing.T) {
	s := join(t)
	eth0 := linkOf(t, s.node, "eth0")
	s.node.Must(t, func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("1"), 0), os.WriteFile("/proc/sys/net/ipv6/conf/eth0/dad_transmits", []byte("2"), 0))
	})
	list, err := addresses(s.node, eth0, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if a.IP.IsLinkLocalUnicast() {
			err = errors.Join(err, s.node.Handle.AddrDel(eth0, &a))
		}
	}
	local := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fe80::77"), Mask: net.CIDRMask(64, 128)}}
	if err := errors.Join(err, s.node.Handle.AddrAdd(eth0, local)); err != nil {
		t.Fatal(err)
	}
	subnets := func() (out []netip.Prefix) {
		s.node.Must(t, func() error {
			links, err := Links()
			for _, l := range links {
				out = append(out, l.Subnets...)
			}
			return err
		})
		return out
	}
	if got, want := subnets(), []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}; !slices.Equal(got, want) {
		t.Errorf("subnets %v, want %v", got, want)
	}
	eventually.True(t, patience, "the subnet of IPv6 counts", func() bool { return slices.Contains(subnets(), netip.MustParsePrefix("2001:db8::/64")) })
}

// An interface that cannot be used is an error that names it; the others are still served.
func TestUnfitInterface(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv4)
	s.node.Must(t, func() error {
		held, err := s.announcer.Announce(map[netip.Addr]ownership.Announcement{s.vip[0]: on("eth0"), s.vip[1]: on("lo")})
		if err == nil || !strings.Contains(err.Error(), "announce 1 addresses on lo: it is the loopback interface") {
			t.Errorf("error %v", err)
		}
		if want := map[netip.Addr][]string{s.vip[0]: {"eth0"}}; !same(held, want) {
			t.Errorf("answers on %v, want %v", held, want)
		}
		return nil
	})
}

func TestIPv6Off(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv4)
	s.node.Sysctl(t, "net.ipv6.conf.eth0.disable_ipv6", "1")
	want := map[netip.Addr]ownership.Announcement{vip6: on("eth0"), s.vip[0]: on("eth0")}
	s.node.Must(t, func() error {
		held, err := s.announcer.Announce(want)
		if err == nil || !strings.Contains(err.Error(), "sysctl net.ipv6.conf.eth0.disable_ipv6=0") {
			t.Errorf("error %v", err)
		}
		if want := map[netip.Addr][]string{s.vip[0]: {"eth0"}}; !same(held, want) {
			t.Errorf("answers on %v, want %v", held, want)
		}
		return nil
	})
	s.answered(t, s.vip[0])
	s.node.Sysctl(t, "net.ipv6.conf.eth0.disable_ipv6", "0")
	if held := s.announce(t, want); len(held) != 2 {
		t.Errorf("answers on %v once IPv6 is on", held)
	}
}

// A socket that rejects its filter is opened again.
func TestFilterFails(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0])
		for _, p := range s.announcer.ports {
			conn := p.responders[s.family].socket.(*packetSocket).conn
			lock(t, conn)
		}
		want := map[netip.Addr]ownership.Announcement{s.vip[0]: on("eth0"), s.vip[1]: on("eth0")}
		s.node.Must(t, func() error {
			if held, err := s.announcer.Announce(want); err == nil || len(held) > 0 {
				t.Errorf("answers on %v although its filter could not be attached, error %v", held, err)
			}
			return nil
		})
		s.hold(t, s.vip[0], s.vip[1])
		s.answered(t, s.vip[1])
	})
}

// lock makes the kernel reject another filter.
func lock(t *testing.T, conn *packet.Conn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var lockErr error
	if err := raw.Control(func(fd uintptr) {
		lockErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1)
	}); err != nil || lockErr != nil {
		t.Fatal(err, lockErr)
	}
}

// The port of a bridge receives nothing; the bridge answers, with its own MAC.
func TestBridgeAnswersForItsPort(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if err := s.node.Handle.LinkAdd(bridge); err != nil {
			t.Fatal(err)
		}
		if err := s.node.Handle.LinkSetMaster(linkOf(t, s.node, "eth0"), bridge); err != nil {
			t.Fatal(err)
		}
		if err := s.node.Handle.LinkSetUp(bridge); err != nil {
			t.Fatal(err)
		}
		waitCarrier(t, s.node, "br0")
		s.self, s.on = mac(s.node.MAC(t, "br0")), "br0"
		s.node.Must(t, func() error {
			held, err := s.announcer.Announce(map[netip.Addr]ownership.Announcement{
				s.vip[0]: on("br0"), s.vip[1]: on("eth0"), s.vip[2]: on("br0", "eth0")})
			if err == nil || !strings.Contains(err.Error(), "name br0") {
				t.Errorf("error %v", err)
			}
			if want := map[netip.Addr][]string{s.vip[0]: {"br0"}, s.vip[2]: {"br0"}}; !same(held, want) {
				t.Errorf("answers on %v, want %v", held, want)
			}
			return nil
		})
		s.transmit(t, s.request(s.host, s.vip[1]))
		s.answered(t, s.vip[0])
		s.learns(t, s.vip[2])
	})
}

func TestStoppedAnnouncerAnswersNothing(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		other := New(Config{Log: slog.New(slog.DiscardHandler)})
		stop := runs(t, other)
		set := map[netip.Addr]ownership.Announcement{s.vip[0]: on("eth0")}
		s.node.Must(t, func() error { _, err := other.Announce(set); return err })
		s.answered(t, s.vip[0])
		stop()
		s.transmit(t, s.request(s.host, s.vip[0]))
		s.hold(t, s.vip[1])
		s.answered(t, s.vip[1])
		if _, err := other.Announce(nil); err == nil {
			t.Error("a stopped announcer takes addresses")
		}
	})
}

// groupsOf returns the IPv6 groups of an interface as listed by the kernel.
func groupsOf(t *testing.T, space *netspace.Space) string {
	t.Helper()
	var list []byte
	space.Must(t, func() (err error) { list, err = os.ReadFile("/proc/thread-self/net/igmp6"); return err })
	return string(list)
}

func TestGroupsAreJoinedAndLeft(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv6)
	mld := s.mld(t)
	a, b := netip.MustParseAddr("2001:db8::ab:4"), netip.MustParseAddr("2001:db8:1::ab:4") // of one group
	const group, text = "ff02::1:ffab:4", "ff0200000000000000000001ffab0004"
	if strings.Contains(groupsOf(t, s.node), text) {
		t.Fatal("this test proves nothing")
	}
	s.hold(t, a, b)
	if !strings.Contains(groupsOf(t, s.node), text) {
		t.Errorf("not joined:\n%s", groupsOf(t, s.node))
	}
	reported(t, mld, group)
	s.hold(t, b)
	if !strings.Contains(groupsOf(t, s.node), text) {
		t.Errorf("left although an address is held in it:\n%s", groupsOf(t, s.node))
	}
	s.hold(t, vip6)
	if strings.Contains(groupsOf(t, s.node), text) {
		t.Errorf("not left:\n%s", groupsOf(t, s.node))
	}
}

// After a carrier loss, the groups are reported again to a switch with MLD snooping.
func TestGroupsAreReportedAgain(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv6)
	a := netip.MustParseAddr("2001:db8::ab:4")
	s.hold(t, a)
	other := s.segment.host
	if err := other.Handle.LinkSetDown(linkOf(t, other, "eth0")); err != nil {
		t.Fatal(err)
	}
	if err := other.Handle.LinkSetUp(linkOf(t, other, "eth0")); err != nil {
		t.Fatal(err)
	}
	waitCarrier(t, s.node, "eth0")
	waitCarrier(t, other, "eth0")
	mld := s.mld(t)
	s.announcer.Refresh()
	s.hold(t, a)
	reported(t, mld, "ff02::1:ffab:4")
}

// mld opens a socket at the host that receives reports of multicast listeners.
func (s *side) mld(t *testing.T) *packet.Conn {
	t.Helper()
	conn := s.socket(t, s.segment.host, ipv6)
	if err := conn.SetPromiscuous(true); err != nil {
		t.Fatal(err)
	}
	return conn
}

// reported waits for a report (RFC 3810: hop-by-hop option, then ICMPv6 type 143) that names the group.
func reported(t *testing.T, conn *packet.Conn, group string) {
	t.Helper()
	want := netip.MustParseAddr(group).AsSlice()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1514)
	for {
		n, _, err := conn.ReadFrom(buf)
		if errors.Is(err, unix.ENETDOWN) {
			continue
		}
		if err != nil {
			t.Fatalf("%s is not reported: %v", group, err)
		}
		if b := buf[:n]; len(b) > 62 && b[20] == 0 && b[62] == 143 && strings.Contains(string(b[62:]), string(want)) {
			return
		}
	}
}

// Another node has answered as well for a while, and neighbors may have recorded its hardware address.
func TestReannounced(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0], s.vip[1])
		announced := func() float64 { return s.count(t, "announcements_total", s.codec.family()) }
		per := float64(len(steps) - s.family) // the reply form is ARP's
		eventually.True(t, patience, "the announcements are over", func() bool { return announced() == 2*per })
		s.learns(t, s.vip[0])
		s.setNeighbor(t, s.vip[0], mac{2, 0, 0, 0, 0, 0x66})
		again := on(s.on)
		again.Epoch = 1
		s.announce(t, map[netip.Addr]ownership.Announcement{s.vip[0]: again, s.vip[1]: on(s.on)})
		s.wantNeighbor(t, s.vip[0], s.self)
		eventually.True(t, patience, "one of the two is announced again", func() bool { return announced() == 3*per })
	})
}
