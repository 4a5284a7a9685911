package l2

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/test/eventually"
)

func probe(names ...string) ownership.Announcement {
	return ownership.Announcement{VIP: "vip", Interfaces: names, Probe: true}
}

// until announces the set after each wake, as the reconcile loop does, until the held set is as wanted.
func (s *side) until(t *testing.T, set map[netip.Addr]ownership.Announcement, ok func(held map[netip.Addr][]string) bool) {
	t.Helper()
	for !ok(s.announce(t, set)) {
		s.waitWake(t)
	}
}

// give assigns the host an address; dad makes its kernel run duplicate address detection.
func (s *side) give(t *testing.T, addr netip.Addr, dad bool) {
	t.Helper()
	a := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}}
	if !dad && addr.Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := s.segment.host.Handle.AddrAdd(linkOf(t, s.segment.host, "eth0"), a); err != nil {
		t.Fatal(err)
	}
}

func (s *side) take(t *testing.T, addr netip.Addr) {
	t.Helper()
	a := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}}
	if err := s.segment.host.Handle.AddrDel(linkOf(t, s.segment.host, "eth0"), a); err != nil {
		t.Fatal(err)
	}
}

// No other host has the address: it is probed twice, then held and announced.
func TestProbeWithoutAnswer(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		set := map[netip.Addr]ownership.Announcement{s.vip[0]: probe("eth0"), s.vip[1]: on("eth0")}
		began := time.Now()
		if held, want := s.announce(t, set), (map[netip.Addr][]string{s.vip[1]: {"eth0"}}); !same(held, want) {
			t.Fatalf("answers on %v, want %v", held, want)
		}
		isProbe := func(m message, frame []byte) bool { return m.target == s.vip[0] && m.probe() }
		for range 2 {
			if got, want := s.next(t, "probe", isProbe), must(s.codec.probe(station{mac: s.self}, s.vip[0])); string(got) != string(want) {
				t.Errorf("probe %x, want %x", got, want)
			}
			s.transmit(t, s.request(s.host, s.vip[0])) // not answered yet: the next answer is for the other one
			s.answered(t, s.vip[1])
		}
		s.until(t, set, func(held map[netip.Addr][]string) bool { return len(held) == 2 })
		if took := time.Since(began); took < 250*time.Millisecond || took > 2*time.Second {
			t.Errorf("held after %v", took)
		}
		s.next(t, "announcement", func(m message, _ []byte) bool { return m.sender == s.vip[0] && !m.target.IsValid() && m.dst != s.peer })
		s.answered(t, s.vip[0])
		if c := s.announcer.Conflicts(); len(c) > 0 {
			t.Errorf("conflicts %v", c)
		}
		if got := s.count(t, "probes_total", s.codec.family()); got != 2 {
			t.Errorf("%v probes, want 2", got)
		}
		eventually.True(t, patience, "the first announcement of each is measured", func() bool { return s.count(t, "announce_duration_seconds", s.codec.family()) == 2 })
	})
}

// The host's kernel has the address: it is not used until the host gives it up.
func TestProbeFindsAHost(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.give(t, s.vip[0], false)
		eventually.True(t, patience, "the host answers", func() bool {
			addrs, err := s.segment.host.Handle.RouteGetWithOptions(s.vip[0].AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
			return err == nil && len(addrs) == 1 && addrs[0].Type == unix.RTN_LOCAL
		})
		set := map[netip.Addr]ownership.Announcement{s.vip[0]: probe("eth0"), s.vip[1]: probe("eth0")}
		began := time.Now()
		s.until(t, set, func(map[netip.Addr][]string) bool { return len(s.announcer.Conflicts()) > 0 })
		if took := time.Since(began); took > controlFor[s.family]+time.Second {
			t.Errorf("found after %v", took)
		}
		c := s.announcer.Conflicts()[s.vip[0]]
		if c.MAC != net.HardwareAddr(s.peer[:]).String() || c.Interface != "eth0" || c.Since.Before(began) || len(s.announcer.Conflicts()) != 1 {
			t.Errorf("conflicts %+v", s.announcer.Conflicts())
		}
		s.until(t, set, func(held map[netip.Addr][]string) bool { return len(held) == 1 && held[s.vip[1]] != nil })
		s.transmit(t, s.request(s.host, s.vip[0]))
		s.answered(t, s.vip[1])
		s.take(t, s.vip[0])
		s.until(t, set, func(held map[netip.Addr][]string) bool { return len(held) == 2 })
		if c := s.announcer.Conflicts(); len(c) > 0 {
			t.Errorf("conflicts %v after the host gave the address up", c)
		}
		if began, over := s.log.with("address conflict: another host"), s.log.with("address conflict resolved"); len(began) != 1 || len(over) != 1 {
			t.Errorf("log: %q, %q; want one of each", began, over)
		}
	})
}

// Another host that probes at the same time is a conflict, too (RFC 5227, 2.1.1; RFC 4862, 5.4.3).
func TestProbeMeetsAProbe(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		set := map[netip.Addr]ownership.Announcement{s.vip[0]: probe("eth0")}
		s.announce(t, set)
		s.next(t, "probe", func(m message, _ []byte) bool { return m.target == s.vip[0] && m.probe() })
		s.transmit(t, s.request(s.unspecified(), s.vip[0]))
		s.waitWake(t)
		if c := s.announcer.Conflicts(); len(c) != 1 {
			t.Errorf("conflicts %v", c)
		}
	})
}

// On a failover there is no time to probe: an address that is being probed is held at once.
func TestProbeIsCutShort(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.announce(t, map[netip.Addr]ownership.Announcement{s.vip[0]: probe("eth0")})
		s.hold(t, s.vip[0])
		s.answered(t, s.vip[0])
	})
}

// The use of a held address by another host is reported within a second and defended at once, and once only while uses
// go on.
func TestConflictIsReportedAndDefended(t *testing.T) {
	foreign := mac{2, 0, 0, 0, 0, 0x66}
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0], s.vip[1])
		s.learns(t, s.vip[0])
		announcements := func() float64 { return s.count(t, "announcements_total", s.codec.family()) }
		per := float64(len(steps)) // for each of the two addresses
		if s.family == ipv6 {
			per--
		}
		eventually.True(t, patience, "the announcements are over", func() bool { return announcements() == 2*per })
		began := time.Now()
		s.transmit(t, s.takeOver(foreign, s.vip[0]))
		s.waitWake(t)
		c, ok := s.announcer.Conflicts()[s.vip[0]]
		if took := time.Since(began); !ok || took > time.Second {
			t.Fatalf("conflicts %v after %v", s.announcer.Conflicts(), took)
		}
		if c.MAC != "02:00:00:00:00:66" || c.Interface != "eth0" {
			t.Errorf("conflict %+v", c)
		}
		for range 20 {
			s.transmit(t, s.takeOver(foreign, s.vip[0]))
		}
		s.answered(t, s.vip[0]) // still, and all frames were received
		if got := announcements() - 2*per; got != 1 {
			t.Errorf("%v defences on the wire, want 1", got)
		}
		if got := s.count(t, "defences_total", s.codec.family()); got != 1 {
			t.Errorf("%v defences, want 1", got)
		}
		if got := s.count(t, "conflicts_total", s.codec.family()); got != 1 {
			t.Errorf("%v conflicts, want 1", got)
		}
		if lines := s.log.with("conflict"); len(lines) != 1 {
			t.Errorf("log %q, want one line", lines)
		}
	})
}

// A host that uses a held address and asks for another one is in conflict as well.
func TestRequestFromHeldAddress(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0], s.vip[1])
		s.transmit(t, s.request(s.vip[0], s.vip[1]))
		s.waitWake(t)
		if c := s.announcer.Conflicts(); len(c) != 1 || c[s.vip[0]].MAC == "" {
			t.Errorf("conflicts %v", c)
		}
	})
}

// The use by another speaker is resolved between the speakers; frames of this node itself are ignored.
func TestUsedByAPeer(t *testing.T) {
	peer := mac{2, 0, 0, 0, 0, 0x66}
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0], s.vip[1])
		s.announcer.SetPeers(map[[6]byte]string{peer: "node2"})
		s.transmit(t, s.takeOver(s.self, s.vip[0]))
		s.answered(t, s.vip[0])
		select {
		case <-s.woken:
			t.Error("woken by a frame of this node")
		default:
		}
		s.transmit(t, s.takeOver(peer, s.vip[0]))
		s.waitWake(t)
		s.answered(t, s.vip[0])
		if c := s.announcer.Conflicts(); len(c) > 0 || s.count(t, "defences_total", s.codec.family()) > 0 {
			t.Errorf("conflicts %v", c)
		}
	})
}

// The kernel of a host that tries to use a held address detects the duplicate.
func TestDuplicateAddressDetectionOfAHost(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv6)
	s.segment.host.Sysctl(t, "net/ipv6/conf/eth0/accept_dad", "1")
	s.hold(t, s.vip[0])
	// Announcements make the host give way as well.
	eventually.True(t, patience, "the announcements are over", func() bool { return s.count(t, "announcements_total", "ipv6") == float64(len(steps)-1) })
	s.give(t, s.vip[0], true)
	eventually.True(t, patience, "the address is marked a duplicate at the host", func() bool {
		list, err := addresses(s.segment.host, linkOf(t, s.segment.host, "eth0"), netlink.FAMILY_V6)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			if got, _ := netip.AddrFromSlice(a.IP); got == s.vip[0] {
				return a.Flags&unix.IFA_F_DADFAILED != 0
			}
		}
		return false
	})
	eventually.True(t, patience, "the defence is counted", func() bool { return s.count(t, "defences_total", "ipv6") > 0 })
	// It gave way, so it is no conflict.
	if c := s.announcer.Conflicts(); len(c) > 0 {
		t.Errorf("conflicts %v", c)
	}
}

// An ARP probe for a held address is answered, as RFC 5227, 2.1.1, expects.
func TestForeignARPProbe(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv4)
	s.hold(t, s.vip[0])
	s.transmit(t, s.request(netip.IPv4Unspecified(), s.vip[0]))
	want := arpFrame{dst: s.peer, src: s.self, op: opReply, senderMAC: s.self, senderIP: s.vip[0], targetMAC: s.peer,
		targetIP: netip.IPv4Unspecified()}
	if got, err := parseARP(s.reply(t)); err != nil || got != want {
		t.Errorf("answer %+v, %v; want %+v", got, err, want)
	}
	eventually.True(t, patience, "the defence is counted", func() bool { return s.count(t, "defences_total", "ipv4") == 1 })
}

// A conflict about a held address ends when another node takes the address over: the address was not given up for the
// conflict, and may be needed again at once, when that node dies.
func TestConflictEndsWithAMove(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.hold(t, s.vip[0], s.vip[1])
		s.transmit(t, s.takeOver(mac{2, 0, 0, 0, 0, 0x66}, s.vip[0]))
		s.waitWake(t)
		if c := s.announcer.Conflicts(); len(c) != 1 {
			t.Fatalf("conflicts %v, want one", c)
		}
		s.announce(t, map[netip.Addr]ownership.Announcement{s.vip[1]: on("eth0")})
		if c := s.announcer.Conflicts(); len(c) > 0 {
			t.Errorf("conflicts %v after the address moved", c)
		}
		s.hold(t, s.vip[0], s.vip[1])
		s.answered(t, s.vip[0])
	})
}
