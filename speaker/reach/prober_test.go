package reach_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/reach"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

// proberFixture is this node, another node on its network, and a router to a second network with a third node.
type proberFixture struct {
	t                         *testing.T
	self, near, router, far   *netspace.Space
	prober                    *reach.Prober
	registry                  *prometheus.Registry
	woken                     chan struct{}
	nearAddr, farAddr, gwAddr netip.Addr
}

func newProberFixture(t *testing.T, v6 bool, macs func() map[[6]byte]string) *proberFixture {
	f := &proberFixture{
		t: t, woken: make(chan struct{}, 1), registry: prometheus.NewRegistry(),
	}
	f.self, f.near, f.router, f.far = netspace.New(t), netspace.New(t), netspace.New(t), netspace.New(t)
	addr := func(four, six string) string {
		if v6 {
			return six
		}
		return four
	}
	prefix := addr("/24", "/64")
	near, gw, far := addr("192.0.2.2", "2001:db8:0:1::2"), addr("198.51.100.2", "2001:db8:0:2::2"), addr("203.0.113.2", "2001:db8:0:3::2")
	netspace.Join(t, f.self, "eth0", addr("192.0.2.1", "2001:db8:0:1::1")+prefix, f.near, "eth0", near+prefix)
	netspace.Join(t, f.self, "eth1", addr("198.51.100.1", "2001:db8:0:2::1")+prefix, f.router, "eth0", gw+prefix)
	netspace.Join(t, f.router, "eth1", addr("203.0.113.1", "2001:db8:0:3::1")+prefix, f.far, "eth0", far+prefix)
	for _, s := range []*netspace.Space{f.near, f.router, f.far} {
		s.Sysctl(t, "net/ipv6/conf/eth0/keep_addr_on_down", "1") // for a cut
	}
	f.router.Sysctl(t, "net/ipv4/ip_forward", "1")
	f.router.Sysctl(t, "net/ipv6/conf/all/forwarding", "1")
	f.self.Route(t, addr("203.0.113.0/24", "2001:db8:0:3::/64"), gw)
	f.far.Route(t, addr("198.51.100.0/24", "2001:db8:0:2::/64"), addr("203.0.113.1", "2001:db8:0:3::1"))
	f.nearAddr, f.gwAddr, f.farAddr = netip.MustParseAddr(near), netip.MustParseAddr(gw), netip.MustParseAddr(far)
	for _, addr := range []string{near, gw, far} {
		if err := f.self.Ping(addr); err != nil {
			t.Fatal(err)
		}
	}
	f.self.Must(t, func() (err error) {
		f.prober, err = reach.New(reach.Options{
			Log: slog.New(slog.DiscardHandler), Metrics: reach.NewMetrics(f.registry), MACs: macs,
			Wake: func() {
				select {
				case f.woken <- struct{}{}:
				default:
				}
			},
		})
		return err
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.prober.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	f.prober.SetNodes(map[string][]netip.Addr{"near": {f.nearAddr}, "far": {f.farAddr}})
	f.prober.SetGateways([]netip.Addr{f.gwAddr})
	f.received("near", "far")
	return f
}

func (f *proberFixture) received(names ...string) {
	set := map[string]struct{}{}
	for _, n := range names {
		set[n] = struct{}{}
	}
	f.prober.SetReceived(set, false, nil)
}

// until waits until the state is as wanted, and returns how long that took.
func (f *proberFixture) until(what string, is func(view.Reachability) bool) time.Duration {
	f.t.Helper()
	began := time.Now()
	deadline := time.After(20 * time.Second)
	for !is(f.prober.State()) {
		select {
		case <-f.woken:
		case <-deadline:
			f.t.Fatalf("not %s: %+v", what, f.prober.State())
		}
	}
	return time.Since(began)
}

// answered waits for a number of further answers of a witness.
func (f *proberFixture) answered(witness string, more int) {
	f.t.Helper()
	count := func() int { return int(f.counter("ironlb_endpoint_unreachable_answers_total", witness)) }
	want := count() + more
	eventually.Nil(f.t, 20*time.Second, fmt.Sprintf("%d answers to %s", want, witness), func(context.Context) error {
		n := count()
		return eventually.Unless(n >= want, "there are %d", n)
	})
}

func (f *proberFixture) counter(name, witness string) float64 {
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			if family.GetName() == name && m.Label[0].GetValue() == witness {
				return m.Counter.GetValue()
			}
		}
	}
	return 0
}

func (f *proberFixture) link(s *netspace.Space, name string, up bool) {
	f.t.Helper()
	link, err := s.Handle.LinkByName(name)
	if err != nil {
		f.t.Fatal(err)
	}
	set := s.Handle.LinkSetDown
	if up {
		set = s.Handle.LinkSetUp
	}
	if err := set(link); err != nil {
		f.t.Fatal(err)
	}
}

func unreachable(names ...string) func(view.Reachability) bool {
	return func(s view.Reachability) bool {
		for _, n := range names {
			if _, is := s.Unreachable[n]; !is {
				return false
			}
		}
		return len(s.Unreachable) == len(names)
	}
}

var families = map[string]bool{"IPv4": false, "IPv6": true}

// TestProber: a node whose link is cut is unreachable, on this network and behind a router; one with a silent speaker
// only is not; one that returns is reachable at once.
func TestProber(t *testing.T) {
	for name, v6 := range families {
		t.Run(name, func(t *testing.T) {
			f := newProberFixture(t, v6, nil)
			f.answered("ICMPEcho", 2)
			f.answered("Neighbor", 1)
			f.received() // no speaker runs any more
			f.answered("ICMPEcho", 20)
			if s := f.prober.State(); len(s.Unreachable)+len(s.Unwitnessed) > 0 || s.CutOff {
				t.Fatalf("%+v", s)
			}
			f.link(f.near, "eth0", false)
			f.until("unreachable", unreachable("near"))
			f.link(f.near, "eth0", true)
			f.until("reachable", unreachable())
			f.received("near", "far")
			f.answered("ICMPEcho", 2)

			for node, link := range map[string]func(up bool){
				"near": func(up bool) { f.link(f.near, "eth0", up) },
				"far":  func(up bool) { f.link(f.far, "eth0", up) },
			} {
				others := map[string]string{"near": "far", "far": "near"}
				link(false)
				f.received(others[node])
				took := f.until(node+" is unreachable", unreachable(node))
				if took < 100*time.Millisecond {
					t.Errorf("%s was unreachable after %v", node, took)
				}
				link(true)
				f.received("near", "far")
				f.until(node+" is reachable", unreachable())
			}
		})
	}
}

// TestProberCutOff: if neither other nodes nor the gateway answer, nothing changes; once the gateway does, the nodes
// are unreachable.
func TestProberCutOff(t *testing.T) {
	for name, v6 := range families {
		t.Run(name, func(t *testing.T) {
			f := newProberFixture(t, v6, nil)
			f.answered("ICMPEcho", 2)
			f.link(f.near, "eth0", false)
			f.link(f.far, "eth0", false)
			f.link(f.router, "eth0", false)
			f.received()
			f.until("cut off", func(s view.Reachability) bool { return s.CutOff && len(s.Unreachable) == 0 })
			f.link(f.router, "eth0", true)
			f.until("unreachable", unreachable("near", "far"))
			if u := f.prober.State().Unreachable["near"]; u.Gateway != f.gwAddr {
				t.Errorf("%+v", u)
			}
		})
	}
}

// TestProberNoEcho: a node on this network that drops ICMP echo is probed by ARP or neighbor discovery; one behind a
// router cannot be probed.
func TestProberNoEcho(t *testing.T) {
	f := newProberFixture(t, false, nil)
	f.near.Sysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")
	f.far.Sysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")
	f.until("far is without a witness", func(s view.Reachability) bool { _, is := s.Unwitnessed["far"]; return is })
	if _, is := f.prober.State().Unwitnessed["near"]; is {
		t.Error("near is without a witness")
	}
	f.link(f.near, "eth0", false)
	f.link(f.far, "eth0", false)
	f.received()
	f.until("near is unreachable", unreachable("near"))
}

// TestProberProxy: an answer from a hardware address other than the node's is no witness.
func TestProberProxy(t *testing.T) {
	f := newProberFixture(t, false, func() map[[6]byte]string { return map[[6]byte]string{{2, 0, 0, 0, 0, 9}: "near"} })
	f.near.Sysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")
	f.until("near is without a witness", func(s view.Reachability) bool { _, is := s.Unwitnessed["near"]; return is })
}

// A host that has answered is asked on an interface without a received speaker; nodes are not. While it does not
// answer, this node is cut off there.
func TestUnanswered(t *testing.T) {
	for name, v6 := range families {
		t.Run(name, func(t *testing.T) {
			f := newProberFixture(t, v6, nil)
			silent, began := func(s view.Reachability) bool { return s.Silent["eth1"].None }, time.Now()
			nodes := map[string]struct{}{"near": {}, "far": {}}
			f.prober.SetReceived(nodes, false, map[string]time.Time{"eth0": began, "eth1": began})
			f.answered("Neighbor", 3)
			if s := f.prober.State().Silent; s["eth1"].None || s["eth1"].First.IsZero() || s["eth0"].First.IsZero() {
				t.Errorf("the router answers on eth1, and eth0 has only nodes: %+v", s)
			}
			readdress := func(mac net.HardwareAddr) (before net.HardwareAddr) { // it answers nothing sent to the old one
				link, err := f.router.Handle.LinkByName("eth0")
				if err == nil {
					err = f.router.Handle.LinkSetHardwareAddr(link, mac)
				}
				if err != nil {
					t.Fatal(err)
				}
				return link.Attrs().HardwareAddr
			}
			mac := readdress(net.HardwareAddr{2, 0, 0, 0, 0, 99})
			began = time.Now() // another silence
			f.prober.SetReceived(nodes, false, map[string]time.Time{"eth0": began, "eth1": began})
			if took := f.until("unanswered", silent); took > 2*time.Second {
				t.Errorf("found after %v", took)
			} else {
				t.Logf("found after %v", took)
			}
			if s := f.prober.State().Silent; s["eth0"].None || !s["eth1"].First.IsZero() {
				t.Errorf("a node was asked, or answers of before count: %+v", s)
			}
			readdress(mac)
			f.until("answered", func(s view.Reachability) bool { return !silent(s) })
		})
	}
}
