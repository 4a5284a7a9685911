package l2

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/test/eventually"
)

// proxied makes the host answer every probe of the node, for every address, until the test ends.
func (s *side) proxied(t *testing.T) {
	conn := s.socket(t, s.segment.host, s.family)
	var ended sync.WaitGroup
	t.Cleanup(ended.Wait)
	t.Cleanup(func() { conn.Close() })
	ended.Go(func() {
		buf := make([]byte, 1514)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if m, err := s.codec.parse(buf[:n]); err == nil && m.probe() && mac(buf[6:12]) == s.self {
				_, _ = conn.WriteTo(must(s.codec.answer(station{mac: s.peer}, m)), from)
			}
		}
	})
}

// TestProxyCostsNoAddress: a host that answers every probe delays the use of an address by seconds at most, causes no
// conflict, and is reported with its hardware address.
func TestProxyCostsNoAddress(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		if n := s.count(t, "proxies", s.codec.family()); n != 0 {
			t.Errorf("the metric is %v without a proxy", n)
		}
		s.proxied(t)
		set := map[netip.Addr]ownership.Announcement{}
		for _, addr := range s.vip {
			set[addr] = probe("eth0")
		}
		began := time.Now()
		s.until(t, set, func(held map[netip.Addr][]string) bool {
			if c := s.announcer.Conflicts(); len(c) > 0 {
				t.Fatalf("conflicts %v", c)
			}
			return len(held) == len(set)
		})
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("held after %v", took)
		}
		found, want := s.announcer.Proxies(), net.HardwareAddr(s.peer[:]).String()
		if len(found) != 1 || found[0].MAC != want || found[0].Interface != "eth0" || found[0].Family != s.codec.family() ||
			found[0].Since.Before(began) {
			t.Errorf("proxies %+v", found)
		}
		if lines := s.log.with("answers for every address"); len(lines) != 1 {
			t.Errorf("log %q", lines)
		}
		if n := s.count(t, "proxies", s.codec.family()); n != 1 {
			t.Errorf("the metric is %v", n)
		}
		// Another host is detected despite the proxy.
		other := addrsFrom(s.vip[3].String(), 2)[1]
		set[other] = probe("eth0")
		s.announce(t, set)
		s.next(t, "probe", func(m message, _ []byte) bool { return m.target == other && m.probe() })
		s.transmit(t, s.takeOver(mac{2, 0, 0, 0, 9, 9}, other))
		s.until(t, set, func(map[netip.Addr][]string) bool { return len(s.announcer.Conflicts()) == 1 })
		if c := s.announcer.Conflicts()[other]; c.MAC != "02:00:00:00:09:09" {
			t.Errorf("conflicts %v", s.announcer.Conflicts())
		}
	})
}

// TestProxyOfMany: many addresses are held soon after a proxy answered for all of them: they do not wait for each
// other.
func TestProxyOfMany(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		set, by := map[netip.Addr]ownership.Announcement{}, mac{2, 0, 0, 0, 9, 9}
		all := map[netip.Addr]mac{controlAddrs[ipv4]: by}
		for _, addr := range addrsFrom("203.0.113.4", 200) {
			set[addr], all[addr] = probe("eth0"), by
		}
		if _, err := a.Announce(set); err != nil {
			t.Fatal(err)
		}
		elapse(50 * ms) // the first probe of each was sent
		sys.sockets[1].occupy(all)
		elapse(time.Second)
		if held, err := a.Announce(set); err != nil || len(held) != len(set) || len(a.Conflicts()) > 0 {
			t.Errorf("%d held, %v; conflicts %v", len(held), err, a.Conflicts())
		}
	})
}

// TestManyProxies: at most maxProxies hosts count as proxies, and an answer for the control address counts only while a
// check runs.
func TestManyProxies(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		set := map[netip.Addr]ownership.Announcement{vip: probe("eth0")}
		announce(t, a, set)
		elapse(50 * ms) // the first probe was sent
		on := sys.sockets[1]
		answers := func(from, to byte) {
			for i := from; i < to; i++ {
				m := message{from: sys.links[0].mac, sender: unspecified(ipv4), target: controlAddrs[ipv4]}
				on.receive(must(codecs[ipv4].answer(station{mac: mac{2, 0, 0, 0, 9, i}}, m)))
			}
			synctest.Wait()
		}
		answers(0, 1)
		if len(a.Proxies()) > 0 {
			t.Errorf("proxies %v before a check", a.Proxies())
		}
		on.occupy(map[netip.Addr]mac{vip: {2, 0, 0, 0, 9, 1}})
		elapse(100 * ms)
		answers(2, 3)
		elapse(time.Second)
		answers(3, 4)
		if len(a.Proxies()) != 1 {
			t.Errorf("proxies %v, want the one that answered while the check ran", a.Proxies())
		}
		checks := on.count("control")
		for on.count("control") == checks {
			elapse(ms)
		}
		answers(2, 2+2*maxProxies)
		if n := len(a.Proxies()); n != maxProxies {
			t.Errorf("%d proxies, want %d", n, maxProxies)
		}
	})
}

// TestUseDuringControl: while a control runs for the host that answered, the use by another host is reported at once.
func TestUseDuringControl(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		announce(t, a, map[netip.Addr]ownership.Announcement{vip: probe("eth0")})
		elapse(50 * ms) // the first probe was sent
		on := sys.sockets[1]
		on.occupy(map[netip.Addr]mac{vip: {2, 0, 0, 0, 9, 1}})
		elapse(100 * ms)
		if on.count("control") == 0 || len(a.Conflicts()) > 0 {
			t.Fatalf("conflicts %v, want none while the check runs", a.Conflicts())
		}
		on.receive(must(codecs[ipv4].announcement(station{mac: asker}, vip, asRequest)))
		synctest.Wait()
		if c := a.Conflicts()[vip]; c.MAC != net.HardwareAddr(asker[:]).String() {
			t.Errorf("conflicts %v", a.Conflicts())
		}
	})
}

// TestAddressOfAProxy: a proxy has the address from which it sends requests: that address is not used, even after it is
// probed again, although the proxy's answers for the others do not count.
func TestAddressOfAProxy(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.proxied(t)
		set := map[netip.Addr]ownership.Announcement{s.vip[0]: probe("eth0")}
		s.until(t, set, func(held map[netip.Addr][]string) bool { return len(held) == 1 })
		own := s.vip[1]
		set[own] = probe("eth0")
		isProbe := func(m message, _ []byte) bool { return m.target == own && m.probe() }
		s.announce(t, set)
		s.next(t, "probe", isProbe)
		s.transmit(t, s.request(own, s.vip[0]))
		s.until(t, set, func(map[netip.Addr][]string) bool { return len(s.announcer.Conflicts()) == 1 })
		for range 6 { // three times two probes
			s.next(t, "probe", isProbe)
			if held := s.announce(t, set); len(held) != 1 || held[s.vip[0]] == nil {
				t.Fatalf("held %v", held)
			}
		}
		if c := s.announcer.Conflicts(); len(c) != 1 || c[own].MAC != net.HardwareAddr(s.peer[:]).String() {
			t.Errorf("conflicts %v", c)
		}
	})
}

// TestUsesByAProxy: each form in which a proxy uses an address unasked counts; its answer does not.
func TestUsesByAProxy(t *testing.T) {
	by := mac{2, 0, 0, 0, 9, 9}
	for name, use := range map[string]struct {
		frame  arpFrame
		counts bool
	}{
		"answer":             {arpFrame{op: opReply, targetIP: netip.IPv4Unspecified()}, false},
		"request":            {arpFrame{op: opRequest, targetIP: host}, true},
		"gratuitous request": {arpFrame{op: opRequest, targetIP: vip}, true},
		"gratuitous reply":   {arpFrame{op: opReply, targetIP: vip}, true},
	} {
		simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
			set := map[netip.Addr]ownership.Announcement{vip: probe("eth0")}
			announce(t, a, set)
			on := sys.sockets[1]
			on.occupy(map[netip.Addr]mac{vip: by, controlAddrs[ipv4]: by})
			elapse(time.Second)
			if held := announce(t, a, set); len(held) != 1 || len(a.Proxies()) != 1 {
				t.Fatalf("%s: held on %v, proxies %v", name, held, a.Proxies())
			}
			f := use.frame
			f.dst, f.src, f.senderMAC, f.senderIP = broadcast, by, by, vip
			on.receive(f.bytes())
			elapse(time.Minute)
			if (len(a.Conflicts()) == 1) != use.counts {
				t.Errorf("%s: conflicts %v", name, a.Conflicts())
			}
			elapse(probeRemovedFor)
			if len(a.Conflicts()) > 0 || len(a.Proxies()) != 1 {
				t.Errorf("%s: conflicts %v long after the use, proxies %v", name, a.Conflicts(), a.Proxies())
			}
		})
	}
}

// TestProxyOfLinux: a proxy that answers requests and announcements, but no probes, as Linux does, does not prevent the
// use of an address. Its answer to an announcement is the use of a held address, and reported as such.
func TestProxyOfLinux(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv4)
	behind := netspace.New(t)
	netspace.Join(t, s.segment.host, "eth1", "198.51.100.1/24", behind, "eth0", "198.51.100.2/24")
	s.segment.host.Route(t, s.vip[0].String()+"/32", "198.51.100.2")
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv4.conf.eth0.proxy_arp"} {
		s.segment.host.Sysctl(t, key, "1")
	}
	s.segment.host.Sysctl(t, "net.ipv4.neigh.eth0.proxy_delay", "0")
	arpRequest := arpFrame{dst: broadcast, src: s.self, op: opRequest, senderMAC: s.self,
		senderIP: netip.MustParseAddr("203.0.113.1"), targetIP: s.vip[0]}.bytes()
	node := s.socket(t, s.node, ipv4)
	if _, err := node.WriteTo(arpRequest, &packet.Addr{HardwareAddr: broadcast[:]}); err != nil {
		t.Fatal(err)
	}
	if err := node.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 1514); ; {
		n, _, err := node.ReadFrom(buf)
		if err != nil {
			t.Fatalf("the proxy does not answer: %v", err)
		}
		if m, err := s.codec.parse(buf[:n]); err == nil && m.sender == s.vip[0] && m.from == s.peer {
			break
		}
	}
	set := map[netip.Addr]ownership.Announcement{s.vip[0]: probe("eth0")}
	s.until(t, set, func(held map[netip.Addr][]string) bool { return len(held) == 1 })
	eventually.True(t, patience, "its answer to an announcement is reported", func() bool { return len(s.announcer.Conflicts()) == 1 })
	if held := s.announce(t, set); len(held) != 1 || len(s.log.with("do not use")) > 0 {
		t.Errorf("held %v, log %q", held, s.log.with("conflict"))
	}
}

// TestAnyIP: a host with the full subnet as a local route (AnyIP) has all those addresses: it is no proxy. A host with
// half of all addresses as a local route in addition answers for everything.
func TestAnyIP(t *testing.T) {
	// The local table and the main table are merged, so the route of the interface takes precedence over a shorter one.
	subnet, half := netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("128.0.0.0/1")
	for proxies, local := range [][]netip.Prefix{{subnet}, {subnet, half}} {
		t.Run(local[len(local)-1].String(), func(t *testing.T) {
			t.Parallel()
			s := newSegment(t, nil).side(t, ipv4)
			for _, p := range local {
				if err := s.segment.host.Handle.RouteAdd(&netlink.Route{
					LinkIndex: linkOf(t, s.segment.host, "lo").Attrs().Index, Table: unix.RT_TABLE_LOCAL,
					Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
					Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)},
				}); err != nil {
					t.Fatal(err)
				}
			}
			set := map[netip.Addr]ownership.Announcement{}
			for _, addr := range s.vip {
				set[addr] = probe("eth0")
			}
			conflicts := len(set) * (1 - proxies)
			s.until(t, set, func(held map[netip.Addr][]string) bool {
				return len(held) == len(set)-conflicts && len(s.announcer.Conflicts()) == conflicts
			})
			if p := s.announcer.Proxies(); len(p) != proxies {
				t.Errorf("proxies %v", p)
			}
		})
	}
}

// TestSubnetIsNoProxy: a host that has every address of the subnet, and no other, is no proxy: none of them is used,
// however long that lasts. Only the control address is probed in addition, at most every ten seconds.
func TestSubnetIsNoProxy(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		set, all := map[netip.Addr]ownership.Announcement{}, map[netip.Addr]mac{}
		for _, addr := range addrsFrom("203.0.113.4", 20) {
			set[addr] = probe("eth0")
		}
		for _, addr := range addrsFrom("203.0.113.0", 256) {
			all[addr] = mac{2, 0, 0, 0, 9, 9}
		}
		if _, err := a.Announce(set); err != nil {
			t.Fatal(err)
		}
		on := sys.sockets[1]
		on.occupy(all)
		for range 600 {
			elapse(time.Second)
			if held, err := a.Announce(set); err != nil || len(held) > 0 {
				t.Fatalf("held %v, %v", held, err)
			}
		}
		if n := len(a.Conflicts()); n != len(set) || len(a.Proxies()) > 0 {
			t.Errorf("%d conflicts, proxies %v", n, a.Proxies())
		}
		if n := on.count("control"); n < 2 || n > 2*61 {
			t.Errorf("%d probes for the control address in ten minutes", n)
		}
		sys.mu.Lock()
		defer sys.mu.Unlock()
		for addr := range on.probed {
			if _, ours := set[addr]; !ours && addr != controlAddrs[ipv4] {
				t.Errorf("%v was probed for", addr)
			}
		}
	})
}

// TestSlowProxy: a proxy that answers late, as one of neighbor discovery may, is detected, whenever the probes are
// sent. The conflict with a host that is no proxy is reported when the time for an answer is over.
func TestSlowProxy(t *testing.T) {
	for family, test := range map[int]struct {
		addr          netip.Addr
		delay, report time.Duration
	}{
		ipv4: {netip.MustParseAddr("203.0.113.4"), 250 * ms, 400 * ms},
		ipv6: {netip.MustParseAddr("2001:db8::4"), time.Second, 1400 * ms},
	} {
		for _, isProxy := range []bool{true, false} {
			simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, calls func() int) {
				var stale atomic.Bool
				a.cfg.Fresh = func() bool { return !stale.Load() }
				set := map[netip.Addr]ownership.Announcement{test.addr: probe("eth0")}
				announce(t, a, set)
				elapse(50 * ms) // the first probe was sent
				on, by := sys.sockets[1], mac{2, 0, 0, 0, 9, 9}
				occupant := map[netip.Addr]mac{test.addr: by}
				if isProxy {
					occupant[controlAddrs[family]] = by
				}
				sys.mu.Lock()
				on.occupant, on.delay = occupant, test.delay
				sys.mu.Unlock()
				stale.Store(true) // no probe for the control address is sent for a second
				on.receive(must(codecs[family].answer(station{mac: by}, message{
					dst: mac{2, 0, 0, 0, 1}, from: mac{2, 0, 0, 0, 1}, sender: unspecified(family), target: test.addr,
				})))
				elapse(time.Second - 5*ms)
				if announce(t, a, set); on.count("control") > 0 || len(a.Conflicts()) > 0 {
					t.Fatalf("%d probes while none may be sent, conflicts %v", on.count("control"), a.Conflicts())
				}
				stale.Store(false)
				for on.count("control") == 0 {
					elapse(ms)
				}
				began := time.Now()
				calls()
				for len(a.Conflicts())+len(a.Proxies()) == 0 {
					elapse(ms)
				}
				took := time.Since(began)
				if isProxy == (len(a.Conflicts()) > 0) {
					t.Fatalf("family %d: conflicts %v, proxies %v", family, a.Conflicts(), a.Proxies())
				}
				if !isProxy && (took < test.report-5*ms || took > test.report+5*ms) {
					t.Errorf("family %d: the conflict is reported after %v, want %v", family, took, test.report)
				}
			})
		}
	}
}

func unspecified(family int) netip.Addr {
	if family == ipv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// TestControlOfOthers: a host that probes for the control address, as a speaker of another cluster does, sends requests
// from it, or announces it, is no proxy.
func TestControlOfOthers(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		control := controlAddrs[s.family]
		set := map[netip.Addr]ownership.Announcement{s.vip[0]: probe("eth0")}
		s.announce(t, set)
		s.next(t, "probe", func(m message, _ []byte) bool { return m.target == s.vip[0] && m.probe() })
		s.transmit(t, must(s.codec.answer(station{mac: s.peer}, message{from: s.self, sender: s.unspecified(), target: s.vip[0]})))
		got := s.next(t, "probe", func(m message, _ []byte) bool { return m.target == control && m.probe() })
		if want := must(s.codec.probe(station{mac: s.self}, control)); string(got[:len(want)]) != string(want) {
			t.Errorf("probe %x, want %x", got, want)
		}
		s.transmit(t, s.request(s.unspecified(), control))
		s.transmit(t, s.request(control, s.vip[0]))
		if s.family == ipv4 {
			s.transmit(t, s.takeOver(s.peer, control))
		}
		s.until(t, set, func(map[netip.Addr][]string) bool { return len(s.announcer.Conflicts()) == 1 })
		if p := s.announcer.Proxies(); len(p) > 0 {
			t.Errorf("proxies %v", p)
		}
	})
}

// TestControlIsOurs: if an announced address or a subnet of the interface is in the control address's block, a host may
// have the control address: there is no check, and each answer counts at once.
func TestControlIsOurs(t *testing.T) {
	control, by := controlAddrs[ipv4], mac{2, 0, 0, 0, 9, 9}
	for name, test := range map[string]struct {
		set     []netip.Addr
		subnets []netip.Prefix
	}{
		"it":       {set: []netip.Addr{vip, control}},
		"adjacent": {set: []netip.Addr{vip, control.Next()}},
		"subnet":   {set: []netip.Addr{vip}, subnets: []netip.Prefix{netip.MustParsePrefix("192.0.0.0/16")}},
	} {
		simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
			sys.subnets = map[int][]netip.Prefix{1: test.subnets}
			set := map[netip.Addr]ownership.Announcement{}
			for i, addr := range test.set {
				set[addr] = ownership.Announcement{VIP: addr.String(), Interfaces: []string{"eth0"}, Probe: i == 0}
			}
			if _, err := a.Announce(set); err != nil {
				t.Fatal(err)
			}
			on := sys.sockets[1]
			on.occupy(map[netip.Addr]mac{vip: by, control: by})
			elapse(150 * ms)
			if len(a.Conflicts()) != 1 || len(a.Proxies()) > 0 || on.count("control") > 0 {
				t.Errorf("%s: conflicts %v, proxies %v", name, a.Conflicts(), a.Proxies())
			}
		})
	}
}

// TestControlBecomesOurs: an address that is added while a check probes for it is probed as any other, and a host that
// has it is no proxy.
func TestControlBecomesOurs(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		set, control := map[netip.Addr]ownership.Announcement{vip: probe("eth0")}, controlAddrs[ipv4]
		announce(t, a, set)
		elapse(50 * ms) // its first probe was sent
		on, by := sys.sockets[1], mac{2, 0, 0, 0, 9, 9}
		on.occupy(map[netip.Addr]mac{vip: by})
		elapse(60 * ms) // the second one was answered
		if on.count("control") != 1 {
			t.Fatalf("%d probes for the control address", on.count("control"))
		}
		set[control] = ownership.Announcement{VIP: "other", Interfaces: []string{"eth0"}, Probe: true}
		announce(t, a, set)
		elapse(240 * ms)
		if held := announce(t, a, set); len(held) > 0 || on.count("control") != 3 || len(a.Conflicts()) != 1 {
			t.Errorf("held %v after %d probes, conflicts %v", held, on.count("control"), a.Conflicts())
		}
		elapse(20 * ms)
		if held := announce(t, a, set); len(held) != 1 {
			t.Errorf("not held after its probes")
		}
	})
}

// TestProxyLeaves: a proxy is checked again before its time is over, without having used an address unasked, and stays
// a proxy without a gap even if answers are lost. It is no proxy any more some minutes after its last answer.
func TestProxyLeaves(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, calls func() int) {
		set := map[netip.Addr]ownership.Announcement{vip: probe("eth0")}
		announce(t, a, set)
		on, by := sys.sockets[1], mac{2, 0, 0, 0, 9, 9}
		all := map[netip.Addr]mac{vip: by, controlAddrs[ipv4]: by}
		on.occupy(all)
		elapse(time.Second)
		if held := announce(t, a, set); len(held) != 1 || len(a.Proxies()) != 1 || len(a.Conflicts()) > 0 {
			t.Fatalf("held on %v, proxies %v, conflicts %v", held, a.Proxies(), a.Conflicts())
		}
		calls()
		before := on.count("control")
		elapse(20 * time.Minute)
		if n := on.count("control") - before; n < 2*7 || n > 2*9 {
			t.Errorf("%d probes for the control address in 20 minutes", n)
		}
		for range 10 { // half of the answers are lost
			on.occupy(nil)
			elapse(time.Minute)
			on.occupy(all)
			elapse(time.Minute)
		}
		if n := calls(); n > 0 || len(a.Proxies()) != 1 || len(a.Conflicts()) > 0 {
			t.Fatalf("%d calls of Wake, proxies %v, conflicts %v", n, a.Proxies(), a.Conflicts())
		}
		on.occupy(map[netip.Addr]mac{vip: by}) // it has the one address now
		elapse(proxyLifetime + time.Second)
		if len(a.Proxies()) > 0 || calls() == 0 {
			t.Errorf("proxies %v", a.Proxies())
		}
		probed := message{from: sys.links[0].mac, sender: unspecified(ipv4), target: vip}
		on.receive(must(codecs[ipv4].answer(station{mac: by}, probed)))
		synctest.Wait()
		if len(a.Conflicts()) != 1 {
			t.Errorf("conflicts %v", a.Conflicts())
		}
	})
}

// TestProxyComesLater: a host that has one of the addresses and becomes a proxy is detected within seconds, and then
// prevents the use of no address.
func TestProxyComesLater(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		set := map[netip.Addr]ownership.Announcement{vip: probe("eth0")}
		announce(t, a, set)
		on, by := sys.sockets[1], mac{2, 0, 0, 0, 9, 9}
		on.occupy(map[netip.Addr]mac{vip: by})
		elapse(time.Minute)
		if len(a.Conflicts()) != 1 {
			t.Fatalf("conflicts %v", a.Conflicts())
		}
		on.occupy(map[netip.Addr]mac{vip: by, controlAddrs[ipv4]: by})
		elapse(controlInterval + 4*time.Second)
		if held := announce(t, a, set); len(held) != 1 || len(a.Conflicts()) > 0 || len(a.Proxies()) != 1 {
			t.Errorf("held on %v, conflicts %v, proxies %v", held, a.Conflicts(), a.Proxies())
		}
	})
}

// TestInterfaceRemovedDuringControl: an address that waits for a control has no conflict when its interface is removed,
// and is probed again when the interface returns.
func TestInterfaceRemovedDuringControl(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		set, both := map[netip.Addr]ownership.Announcement{vip: probe("eth0")}, sys.links
		announce(t, a, set)
		sys.sockets[1].occupy(map[netip.Addr]mac{vip: {2, 0, 0, 0, 9, 9}})
		elapse(150 * ms) // its second probe was answered
		sys.links = nil
		a.Refresh()
		announce(t, a, set)
		elapse(time.Second)
		if len(a.Conflicts()) > 0 {
			t.Errorf("conflicts %v, which were not checked", a.Conflicts())
		}
		sys.links = slices.Clone(both)
		a.Refresh()
		announce(t, a, set)
		elapse(300 * ms)
		if held := announce(t, a, set); len(held) != 1 || len(a.Conflicts()) > 0 {
			t.Errorf("held on %v, conflicts %v", held, a.Conflicts())
		}
	})
}

// TestProbeOfAUnit: while another host has one address of a VirtualIP, the other address is not used: the caller has
// time to give both up.
func TestProbeOfAUnit(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, calls func() int) {
		free := addrsFrom(vip.String(), 2)[1]
		set := map[netip.Addr]ownership.Announcement{vip: probe("eth0"), free: probe("eth0")}
		announce(t, a, set)
		sys.sockets[1].occupy(map[netip.Addr]mac{vip: {2, 0, 0, 0, 9, 9}})
		for calls() == 0 {
			elapse(ms)
			if held := announce(t, a, set); len(held) > 0 {
				t.Fatalf("held before the conflict of the other address is reported")
			}
		}
		elapse(reportFor / 2)
		if held := announce(t, a, set); len(held) > 0 || len(a.Conflicts()) != 1 {
			t.Errorf("held on %v, conflicts %v", held, a.Conflicts())
		}
	})
}
