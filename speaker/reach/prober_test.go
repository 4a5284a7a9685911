package reach_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/reach"
	"github.com/ironlb/ironlb/speaker/view"
)

// lab is this node, another node on its network, and a router to a second network with a third node.
type lab struct {
	t                         *testing.T
	self, near, router, far   *netspace.Space
	prober                    *reach.Prober
	registry                  *prometheus.Registry
	woken                     chan struct{}
	nearAddr, farAddr, gwAddr netip.Addr
	record                    string // a file
}

func newLab(t *testing.T, v6 bool, macs func() map[[6]byte]string) *lab {
	l := &lab{
		t: t, woken: make(chan struct{}, 1), registry: prometheus.NewRegistry(), record: filepath.Join(t.TempDir(), "record"),
	}
	l.self, l.near, l.router, l.far = netspace.New(t), netspace.New(t), netspace.New(t), netspace.New(t)
	addr := func(four, six string) string {
		if v6 {
			return six
		}
		return four
	}
	prefix := addr("/24", "/64")
	near, gw, far := addr("192.0.2.2", "2001:db8:0:1::2"), addr("198.51.100.2", "2001:db8:0:2::2"), addr("203.0.113.2", "2001:db8:0:3::2")
	netspace.Join(t, l.self, "eth0", addr("192.0.2.1", "2001:db8:0:1::1")+prefix, l.near, "eth0", near+prefix)
	netspace.Join(t, l.self, "eth1", addr("198.51.100.1", "2001:db8:0:2::1")+prefix, l.router, "eth0", gw+prefix)
	netspace.Join(t, l.router, "eth1", addr("203.0.113.1", "2001:db8:0:3::1")+prefix, l.far, "eth0", far+prefix)
	for _, s := range []*netspace.Space{l.near, l.router, l.far} {
		s.Sysctl(t, "net/ipv6/conf/eth0/keep_addr_on_down", "1") // for a cut
	}
	l.router.Sysctl(t, "net/ipv4/ip_forward", "1")
	l.router.Sysctl(t, "net/ipv6/conf/all/forwarding", "1")
	l.self.Route(t, addr("203.0.113.0/24", "2001:db8:0:3::/64"), gw)
	l.far.Route(t, addr("198.51.100.0/24", "2001:db8:0:2::/64"), addr("203.0.113.1", "2001:db8:0:3::1"))
	l.nearAddr, l.gwAddr, l.farAddr = netip.MustParseAddr(near), netip.MustParseAddr(gw), netip.MustParseAddr(far)
	for _, addr := range []string{near, gw, far} {
		if err := l.self.Ping(addr); err != nil {
			t.Fatal(err)
		}
	}
	l.self.Must(t, func() (err error) {
		l.prober, err = reach.New(reach.Options{
			Log: slog.New(slog.DiscardHandler), Metrics: reach.NewMetrics(l.registry), MACs: macs, Record: l.record,
			Wake: func() {
				select {
				case l.woken <- struct{}{}:
				default:
				}
			},
		})
		return err
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- l.prober.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	l.prober.SetNodes(map[string][]netip.Addr{"near": {l.nearAddr}, "far": {l.farAddr}})
	l.prober.SetGateways([]netip.Addr{l.gwAddr})
	l.received("near", "far")
	return l
}

func (l *lab) received(names ...string) {
	set := map[string]struct{}{}
	for _, n := range names {
		set[n] = struct{}{}
	}
	l.prober.SetReceived(set, false, nil)
}

// until waits until the state is as wanted, and returns how long that took.
func (l *lab) until(what string, is func(view.Reachability) bool) time.Duration {
	l.t.Helper()
	began := time.Now()
	deadline := time.After(20 * time.Second)
	for !is(l.prober.State()) {
		select {
		case <-l.woken:
		case <-deadline:
			l.t.Fatalf("not %s: %+v", what, l.prober.State())
		}
	}
	return time.Since(began)
}

// answered waits for a number of further answers of a witness.
func (l *lab) answered(witness string, more int) {
	l.t.Helper()
	count := func() int { return int(l.counter("ironlb_endpoint_unreachable_answers_total", witness)) }
	want := count() + more
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); count() < want; <-tick.C {
		if time.Now().After(deadline) {
			l.t.Fatalf("%d answers to %s, want %d", count(), witness, want)
		}
	}
}

func (l *lab) counter(name, witness string) float64 {
	families, err := l.registry.Gather()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && m.Label[0].GetValue() == witness {
				return m.Counter.GetValue()
			}
		}
	}
	return 0
}

func (l *lab) link(s *netspace.Space, name string, up bool) {
	l.t.Helper()
	link, err := s.Handle.LinkByName(name)
	if err != nil {
		l.t.Fatal(err)
	}
	set := s.Handle.LinkSetDown
	if up {
		set = s.Handle.LinkSetUp
	}
	if err := set(link); err != nil {
		l.t.Fatal(err)
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
			l := newLab(t, v6, nil)
			l.answered("ICMPEcho", 2)
			l.answered("Neighbor", 1)
			l.received() // no speaker runs any more
			l.answered("ICMPEcho", 20)
			if s := l.prober.State(); len(s.Unreachable)+len(s.Unwitnessed) > 0 || s.CutOff {
				t.Fatalf("%+v", s)
			}
			l.link(l.near, "eth0", false)
			l.until("unreachable", unreachable("near"))
			l.link(l.near, "eth0", true)
			l.until("reachable", unreachable())
			l.received("near", "far")
			l.answered("ICMPEcho", 2)

			for node, link := range map[string]func(up bool){
				"near": func(up bool) { l.link(l.near, "eth0", up) },
				"far":  func(up bool) { l.link(l.far, "eth0", up) },
			} {
				others := map[string]string{"near": "far", "far": "near"}
				link(false)
				l.received(others[node])
				took := l.until(node+" is unreachable", unreachable(node))
				if took < 100*time.Millisecond {
					t.Errorf("%s was unreachable after %v", node, took)
				}
				link(true)
				l.received("near", "far")
				l.until(node+" is reachable", unreachable())
			}
		})
	}
}

// TestProberCutOff: if neither other nodes nor the gateway answer, nothing changes; once the gateway does, the nodes
// are unreachable.
func TestProberCutOff(t *testing.T) {
	for name, v6 := range families {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, v6, nil)
			l.answered("ICMPEcho", 2)
			l.link(l.near, "eth0", false)
			l.link(l.far, "eth0", false)
			l.link(l.router, "eth0", false)
			l.received()
			l.until("cut off", func(s view.Reachability) bool { return s.CutOff && len(s.Unreachable) == 0 })
			l.link(l.router, "eth0", true)
			l.until("unreachable", unreachable("near", "far"))
			if u := l.prober.State().Unreachable["near"]; u.Gateway != l.gwAddr {
				t.Errorf("%+v", u)
			}
		})
	}
}

// TestProberNoEcho: a node on this network that drops ICMP echo is probed by ARP or neighbor discovery; one behind a
// router cannot be probed.
func TestProberNoEcho(t *testing.T) {
	l := newLab(t, false, nil)
	l.near.Sysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")
	l.far.Sysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")
	l.until("far is without a witness", func(s view.Reachability) bool { _, is := s.Unwitnessed["far"]; return is })
	if _, is := l.prober.State().Unwitnessed["near"]; is {
		t.Error("near is without a witness")
	}
	l.link(l.near, "eth0", false)
	l.link(l.far, "eth0", false)
	l.received()
	l.until("near is unreachable", unreachable("near"))
}

// TestProberRecord: an unreachable node is unreachable for the next process from its start; after its return it is not.
func TestProberRecord(t *testing.T) {
	l := newLab(t, false, nil)
	l.answered("ICMPEcho", 2)
	l.answered("Neighbor", 1)
	next := func(recorded bool) view.Reachability {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
			if _, err := os.Stat(l.record); (err == nil) == recorded {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the record exists: %v", !recorded)
			}
		}
		var state view.Reachability
		l.self.Must(t, func() error {
			p, err := reach.New(reach.Options{
				Log: slog.New(slog.DiscardHandler), Metrics: reach.NewMetrics(prometheus.NewRegistry()), Wake: func() {}, Record: l.record,
			})
			if err != nil {
				return err
			}
			state = p.State()
			ctx, stop := context.WithCancel(t.Context())
			stop()
			return p.Run(ctx) // closes it
		})
		return state
	}
	l.link(l.near, "eth0", false)
	l.received("far")
	l.until("near is unreachable", unreachable("near"))
	if got := next(true); !unreachable("near")(got) {
		t.Errorf("the next one begins with %+v", got)
	}
	l.link(l.near, "eth0", true)
	l.until("near is reachable", unreachable())
	if got := next(false); !unreachable()(got) {
		t.Errorf("after its return the next one begins with %+v", got)
	}
}

// TestProberProxy: an answer from a hardware address other than the node's is no witness.
func TestProberProxy(t *testing.T) {
	l := newLab(t, false, func() map[[6]byte]string { return map[[6]byte]string{{2, 0, 0, 0, 0, 9}: "near"} })
	l.near.Sysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")
	l.until("near is without a witness", func(s view.Reachability) bool { _, is := s.Unwitnessed["near"]; return is })
}

// A host that has answered is asked on an interface without a received speaker; nodes are not. While it does not
// answer, this node is cut off there.
func TestUnanswered(t *testing.T) {
	for name, v6 := range families {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, v6, nil)
			silent := func(s view.Reachability) bool { _, is := s.Unanswered["eth1"]; return is }
			nodes := map[string]struct{}{"near": {}, "far": {}}
			l.prober.SetReceived(nodes, false, []string{"eth0", "eth1"})
			l.answered("Neighbor", 3)
			if s := l.prober.State(); len(s.Unanswered) > 0 {
				t.Errorf("the router answers: %+v", s)
			}
			l.prober.SetReceived(nodes, false, nil)
			readdress := func(mac net.HardwareAddr) (before net.HardwareAddr) { // it answers nothing sent to the old one
				link, err := l.router.Handle.LinkByName("eth0")
				if err == nil {
					err = l.router.Handle.LinkSetHardwareAddr(link, mac)
				}
				if err != nil {
					t.Fatal(err)
				}
				return link.Attrs().HardwareAddr
			}
			mac := readdress(net.HardwareAddr{2, 0, 0, 0, 0, 99})
			l.prober.SetReceived(nodes, false, []string{"eth0", "eth1"})
			if took := l.until("unanswered", silent); took > 2*time.Second {
				t.Errorf("found after %v", took)
			} else {
				t.Logf("found after %v", took)
			}
			if _, is := l.prober.State().Unanswered["eth0"]; is {
				t.Error("a node was asked")
			}
			readdress(mac)
			l.until("answered", func(s view.Reachability) bool { return !silent(s) })
		})
	}
}
