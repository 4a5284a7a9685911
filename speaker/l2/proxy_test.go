package l2

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mdlayher/packet"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/plan"
)

// proxied has the host answer every probe of the node, for every address, until the test ends.
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
				_, _ = conn.WriteTo(s.claim(s.peer, m.target), from)
			}
		}
	})
}

// TestProxyCostsNoAddress: a host that answers every probe keeps no address from its use for longer than seconds, gives
// rise to no conflict, and is reported with its hardware address.
func TestProxyCostsNoAddress(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s *side) {
		s.proxied(t)
		set := map[netip.Addr]plan.Announcement{}
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
		if all, err := s.registry.Gather(); err != nil {
			t.Error(err)
		} else {
			for _, of := range all {
				for _, m := range of.Metric {
					mine := m.Label[0].GetValue() == s.codec.family()
					if of.GetName() == "ironlb_l2_proxies" && mine && m.Gauge.GetValue() != 1 {
						t.Errorf("the metric is %v", m.Gauge.GetValue())
					}
				}
			}
		}
		// Another host is found although there is a proxy.
		other := addrsFrom(s.vip[3].String(), 2)[1]
		set[other] = probe("eth0")
		s.announce(t, set)
		s.next(t, "probe", func(m message, _ []byte) bool { return m.target == other && m.probe() })
		s.tell(t, s.claim(mac{2, 0, 0, 0, 9, 9}, other))
		s.until(t, set, func(map[netip.Addr][]string) bool { return len(s.announcer.Conflicts()) == 1 })
		if c := s.announcer.Conflicts()[other]; c.MAC != "02:00:00:00:09:09" {
			t.Errorf("conflicts %v", s.announcer.Conflicts())
		}
	})
}

// TestProxyOfLinux: a proxy that answers questions and announcements, but no probes, as Linux does, keeps no address
// from its use. Its answer to an announcement is a claim of a held address, and reported as such.
func TestProxyOfLinux(t *testing.T) {
	s := newSegment(t, nil).side(t, ipv4)
	behind := netspace.New(t)
	netspace.Join(t, s.segment.host, "eth1", "198.51.100.1/24", behind, "eth0", "198.51.100.2/24")
	s.segment.host.Route(t, s.vip[0].String()+"/32", "198.51.100.2")
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv4.conf.eth0.proxy_arp"} {
		s.segment.host.Sysctl(t, key, "1")
	}
	s.segment.host.Sysctl(t, "net.ipv4.neigh.eth0.proxy_delay", "0")
	asked := arpFrame{dst: broadcast, src: s.self, op: opRequest, senderMAC: s.self,
		senderIP: netip.MustParseAddr("203.0.113.1"), targetIP: s.vip[0]}.bytes()
	node := s.socket(t, s.node, ipv4)
	if _, err := node.WriteTo(asked, &packet.Addr{HardwareAddr: broadcast[:]}); err != nil {
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
	set := map[netip.Addr]plan.Announcement{s.vip[0]: probe("eth0")}
	s.until(t, set, func(held map[netip.Addr][]string) bool { return len(held) == 1 })
	eventually(t, "its answer to an announcement is reported", func() bool { return len(s.announcer.Conflicts()) == 1 })
	if held := s.announce(t, set); len(held) != 1 || len(s.log.with("do not use")) > 0 {
		t.Errorf("held %v, log %q", held, s.log.with("conflict"))
	}
}

// TestManyAddressesAreNoProxy: a host that has all of our addresses, as another cluster's node, and a quarter of the
// subnet besides is no proxy: none of them is used.
func TestManyAddressesAreNoProxy(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		set := map[netip.Addr]plan.Announcement{}
		for _, addr := range addrsFrom("203.0.113.4", 20) {
			set[addr] = probe("eth0")
		}
		if _, err := a.Announce(set); err != nil {
			t.Fatal(err)
		}
		on := sys.sockets[1]
		sys.mu.Lock()
		on.occupant = map[netip.Addr]mac{}
		for _, addr := range addrsFrom("203.0.113.4", 64) {
			on.occupant[addr] = mac{2, 0, 0, 0, 9, 9}
		}
		sys.mu.Unlock()
		for range 60 {
			time.Sleep(time.Second)
			synctest.Wait()
			if held, err := a.Announce(set); err != nil || len(held) > 0 {
				t.Fatalf("held %v, %v", held, err)
			}
		}
		if n := len(a.Conflicts()); n != len(set) || len(a.Proxies()) > 0 {
			t.Errorf("%d conflicts, proxies %v", n, a.Proxies())
		}
	})
}

// TestProxyLeaves: a host that answered for all is no proxy any more some minutes after it does not; while it does it
// is checked again before that, and stays one without a gap.
func TestProxyLeaves(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, kicks func() int) {
		set := map[netip.Addr]plan.Announcement{vip: probe("eth0")}
		announce(t, a, set)
		on, by := sys.sockets[1], mac{2, 0, 0, 0, 9, 9}
		sys.mu.Lock()
		on.occupant = map[netip.Addr]mac{}
		for _, addr := range addrsFrom("203.0.113.0", 256) {
			on.occupant[addr] = by
		}
		sys.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if held := announce(t, a, set); len(held) != 1 || len(a.Proxies()) != 1 || len(a.Conflicts()) > 0 {
			t.Fatalf("held on %v, proxies %v, conflicts %v", held, a.Proxies(), a.Conflicts())
		}
		claim := func() {
			on.hear(codecs[ipv4].announcement(station{mac: by}, vip, asRequest))
			synctest.Wait()
		}
		kicks()
		for range 20 { // it goes on
			time.Sleep(time.Minute)
			claim()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := kicks(); n > 0 || len(a.Proxies()) != 1 || len(a.Conflicts()) > 0 {
			t.Fatalf("kicked %d times, proxies %v, conflicts %v", n, a.Proxies(), a.Conflicts())
		}
		sys.mu.Lock()
		on.occupant = map[netip.Addr]mac{vip: by} // it has the one address now
		sys.mu.Unlock()
		time.Sleep(proxyFor + time.Second)
		synctest.Wait()
		if len(a.Proxies()) > 0 || kicks() == 0 {
			t.Errorf("proxies %v", a.Proxies())
		}
		claim()
		if len(a.Conflicts()) != 1 {
			t.Errorf("conflicts %v", a.Conflicts())
		}
	})
}

// TestProbeOfAUnit: while another host is found to have one address of a VirtualIP, the other one is not used: the caller
// has time to give both up.
func TestProbeOfAUnit(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, kicks func() int) {
		free := addrsFrom(vip.String(), 2)[1]
		set := map[netip.Addr]plan.Announcement{vip: probe("eth0"), free: probe("eth0")}
		announce(t, a, set)
		on := sys.sockets[1]
		sys.mu.Lock()
		on.occupant = map[netip.Addr]mac{vip: {2, 0, 0, 0, 9, 9}}
		sys.mu.Unlock()
		for kicks() == 0 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if held := announce(t, a, set); len(held) > 0 {
				t.Fatalf("held before the conflict of the other address is reported")
			}
		}
		time.Sleep(controlFor / 2)
		synctest.Wait()
		if held := announce(t, a, set); len(held) > 0 || len(a.Conflicts()) != 1 {
			t.Errorf("held on %v, conflicts %v", held, a.Conflicts())
		}
	})
}

// TestChoose: control addresses are of the prefix, neither its first nor its last, not taken, and all different.
func TestChoose(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	random := func() byte { return byte(source.Uint32()) }
	for text, some := range map[string]bool{
		"203.0.113.0/24": true, "203.0.113.64/26": true, "203.0.113.64/27": false, "2001:db8::/64": true,
		"2001:db8::/124": false,
	} {
		in := netip.MustParsePrefix(text)
		taken := in.Addr().Next()
		list := choose(in, func(a netip.Addr) bool { return a == taken }, random)
		if some != (len(list) == controls) {
			t.Errorf("%v: %v", in, list)
		}
		seen := map[netip.Addr]bool{taken: true, in.Addr(): true}
		for _, addr := range list {
			if seen[addr] || !in.Contains(addr) || !in.Contains(addr.Next()) {
				t.Errorf("%v: %v among %v", in, addr, list)
			}
			seen[addr] = true
		}
	}
	full := choose(netip.MustParsePrefix("203.0.113.0/26"), func(netip.Addr) bool { return true }, random)
	if full != nil {
		t.Errorf("all taken: %v", full)
	}
}
