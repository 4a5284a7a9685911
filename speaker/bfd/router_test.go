package bfd

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/router"
)

// peer is a router that has BFD sessions with a node. BIRD's sessions follow from its BGP neighbors, which never
// answer here; FRR's are configured directly.
type peer struct {
	kind  string
	space *netspace.Space
	place router.Place
	conf  router.Config
	router.Router
}

// watchedBy configures a session of a router.
type watchedBy struct {
	node, self string
	multiHop   bool
	interval   time.Duration
	shutdown   bool
}

func (p *peer) config(sessions []watchedBy) router.Config {
	c := router.Config{ASN: 65001, ID: addr("203.0.113.1")}
	if p.kind == "bird" {
		for i, s := range sessions {
			n := router.Neighbor{Name: fmt.Sprintf("n%d", i), Address: addr(s.node), Local: addr(s.self), ASN: 65002,
				BFD: router.BFDTimers{Interval: s.interval, Multiplier: 3}}
			if s.multiHop {
				n.MultiHop = 2
			}
			c.Neighbors = append(c.Neighbors, n)
		}
		return c
	}
	c.FRR = "bfd\n"
	for _, s := range sessions {
		name := fmt.Sprintf("peer %s local-address %s", s.node, s.self)
		if s.multiHop {
			name = fmt.Sprintf("peer %s multihop local-address %s", s.node, s.self)
		} else {
			name += " interface eth0"
		}
		c.FRR += fmt.Sprintf(" %s\n  detect-multiplier 3\n  receive-interval %d\n  transmit-interval %[2]d\n", name, s.interval.Milliseconds())
		if s.multiHop {
			c.FRR += "  minimum-ttl 250\n"
		}
		if s.shutdown {
			c.FRR += "  shutdown\n exit\n"
		} else {
			c.FRR += "  no shutdown\n exit\n"
		}
	}
	c.FRR += "exit\n"
	return c
}

func (p *peer) start(t *testing.T, sessions []watchedBy) {
	t.Helper()
	p.place, p.conf = router.In(t, p.space), p.config(sessions)
	r, err := router.Kinds[p.kind](t.Context(), p.place, p.conf)
	if err != nil {
		t.Fatal(err)
	}
	p.Router = r
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Log())
		}
		_ = r.Stop()
	})
}

// wait waits until the router reports a session as wanted.
func (p *peer) wait(t *testing.T, node, what string, ok func(router.BFDSession) bool) (s router.BFDSession) {
	t.Helper()
	eventually.Nil(t, patience, node+": "+what, func(ctx context.Context) error {
		sessions, err := p.BFD(ctx)
		var known bool
		s, known = sessions[node]
		return eventually.Unless(err == nil && known && ok(s), "%v: %+v", err, s)
	})
	return s
}

// routers runs a test with each kind of router.
func routers(t *testing.T, test func(*testing.T, *peer)) {
	t.Parallel()
	for kind := range router.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, &peer{kind: kind})
		})
	}
}

// TestRouter: sessions of both families come up, with the slower side's timers; both sides detect a black hole within
// the detection time; changed timers are negotiated while the session is up; a restart of the router is detected.
func TestRouter(t *testing.T) {
	routers(t, func(t *testing.T, p *peer) {
		node, space := link(t)
		p.space = space
		sessions := []watchedBy{{node: "192.0.2.1", self: "192.0.2.2", interval: 100 * time.Millisecond}, {node: "2001:db8::1", self: "2001:db8::2", interval: 100 * time.Millisecond}}
		p.start(t, sessions)
		a := start(t, node)
		slow := fast
		slow.Transmit, slow.Receive = 200*time.Millisecond, 300*time.Millisecond
		a.Set(map[string]Config{"four": {Peer: addr("192.0.2.2"), Timers: fast}, "six": {Peer: addr("2001:db8::2"), Timers: slow}})
		a.wait(t, "four", "up", agreed(100*time.Millisecond, 300*time.Millisecond))
		a.wait(t, "six", "up", agreed(200*time.Millisecond, 900*time.Millisecond))
		p.wait(t, "192.0.2.1", "up", func(s router.BFDSession) bool { return s.State == "Up" && s.Detect == 300*time.Millisecond })
		p.wait(t, "2001:db8::1", "up", func(s router.BFDSession) bool { return s.State == "Up" && s.Detect == 600*time.Millisecond })
		six := a.is("six").Since

		// Changed timers, first slower, then faster, in both directions.
		slow.Transmit, slow.Multiplier = 400*time.Millisecond, 5
		a.Set(map[string]Config{"four": {Peer: addr("192.0.2.2"), Timers: fast}, "six": {Peer: addr("2001:db8::2"), Timers: slow}})
		p.wait(t, "2001:db8::1", "slower", func(s router.BFDSession) bool { return s.State == "Up" && s.Detect == 2*time.Second })
		a.Set(map[string]Config{"four": {Peer: addr("192.0.2.2"), Timers: fast}, "six": {Peer: addr("2001:db8::2"), Timers: fast}})
		p.wait(t, "2001:db8::1", "faster", func(s router.BFDSession) bool { return s.State == "Up" && s.Detect == 300*time.Millisecond })
		if is := a.wait(t, "six", "faster", agreed(100*time.Millisecond, 300*time.Millisecond)); is.Since != six {
			t.Errorf("it went down for other timers: %+v", is)
		}

		heal := silence(t, space)
		at := time.Now()
		for name, node := range map[string]string{"four": "192.0.2.1", "six": "2001:db8::1"} {
			is := a.wait(t, name, "down", down)
			t.Logf("%s: %s found after %v", p.kind, name, is.Since.Sub(at)) // make bench-bgp has the times
			if is.Reason != Expired || is.Detected < 300*time.Millisecond {
				t.Errorf("down: %+v", is)
			}
			p.wait(t, node, "down", func(s router.BFDSession) bool { return s.State == "Down" })
		}
		heal()
		for _, name := range []string{"four", "six"} {
			a.wait(t, name, "up again", agreed(100*time.Millisecond, 300*time.Millisecond))
		}

		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		a.wait(t, "four", "down with the router", func(s Status) bool { return down(s) && s.Reason == Expired })
		p.start(t, sessions)
		a.wait(t, "four", "up with the router", agreed(100*time.Millisecond, 300*time.Millisecond))
		a.wait(t, "six", "up with the router", agreed(100*time.Millisecond, 300*time.Millisecond))
	})
}

// TestRouterMultiHop: sessions over several hops.
func TestRouterMultiHop(t *testing.T) {
	routers(t, func(t *testing.T, p *peer) {
		node, space := far(t)
		p.space = space
		p.start(t, []watchedBy{{node: "192.0.2.1", self: "198.51.100.2", multiHop: true, interval: 100 * time.Millisecond},
			{node: "2001:db8:1::1", self: "2001:db8:2::2", multiHop: true, interval: 100 * time.Millisecond}})
		a := start(t, node)
		multi := fast
		multi.MinimumTTL = 254
		if p.kind == "bird" { // it sends multihop packets with the kernel's TTL
			a.Set(map[string]Config{"four": {Peer: addr("198.51.100.2"), MultiHop: true, Timers: fast}})
			a.wait(t, "four", "why not", func(s Status) bool {
				return s.Problem == "packets of the peer arrive with TTL 63, minimum 254: set minimumTtl to 63 if the peer is that many hops away"
			})
			multi.MinimumTTL = 63
		}
		a.Set(map[string]Config{"four": {Peer: addr("198.51.100.2"), Local: addr("192.0.2.1"), MultiHop: true, Timers: multi},
			"six": {Peer: addr("2001:db8:2::2"), MultiHop: true, Timers: multi}})
		for name, node := range map[string]string{"four": "192.0.2.1", "six": "2001:db8:1::1"} {
			a.wait(t, name, "up", agreed(100*time.Millisecond, 300*time.Millisecond))
			p.wait(t, node, "up", func(s router.BFDSession) bool { return s.State == "Up" && s.Detect == 300*time.Millisecond })
		}
		heal := silence(t, space)
		a.wait(t, "four", "down", down)
		heal()
		a.wait(t, "four", "up again", up)
		// A minimum that no packet reaches any more.
		multi.MinimumTTL = 255
		a.Set(map[string]Config{"four": {Peer: addr("198.51.100.2"), Local: addr("192.0.2.1"), MultiHop: true, Timers: multi}})
		if is := a.wait(t, "four", "down by its TTL", down); is.Reason != Expired {
			t.Errorf("down for %v", is.Reason)
		}
	})
}

// TestRouterLinkLocal: a session between link-local addresses.
func TestRouterLinkLocal(t *testing.T) {
	t.Parallel()
	p := &peer{kind: "frr"} // BIRD's need a BGP session with a zone, which test/lab/router does not write
	node, space := link(t)
	p.space = space
	p.start(t, []watchedBy{{node: "fe80::1", self: "fe80::2", interval: 100 * time.Millisecond}})
	a := start(t, node)
	a.Set(map[string]Config{"b": {Peer: addr("fe80::2%eth0"), Timers: fast}})
	a.wait(t, "b", "up", agreed(100*time.Millisecond, 300*time.Millisecond))
}

// TestRouterAdminDown: FRR is set to take its session down, and receives AdminDown for a session removed here. BIRD
// does not send AdminDown.
func TestRouterAdminDown(t *testing.T) {
	t.Parallel()
	node, space := link(t)
	p := &peer{kind: "frr", space: space}
	session := watchedBy{node: "192.0.2.1", self: "192.0.2.2", interval: 100 * time.Millisecond}
	p.start(t, []watchedBy{session})
	a := start(t, node)
	conf := map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: fast}}
	a.Set(conf)
	a.wait(t, "b", "up", up)
	session.shutdown = true
	if err := p.Configure(t.Context(), p.config([]watchedBy{session})); err != nil {
		t.Fatal(err)
	}
	if is := a.wait(t, "b", "down", down); is.Reason != PeerAdminDown || is.RemoteState != view.BFDAdminDown {
		t.Errorf("down for %+v", is)
	}
	session.shutdown = false
	if err := p.Configure(t.Context(), p.config([]watchedBy{session})); err != nil {
		t.Fatal(err)
	}
	a.wait(t, "b", "up again", up)
	p.wait(t, "192.0.2.1", "up", func(s router.BFDSession) bool { return s.State == "Up" })
	a.Set(nil)
	s := p.wait(t, "192.0.2.1", "notified", func(s router.BFDSession) bool { return s.State != "Up" })
	t.Log(s.Text)
	a.Set(conf)
	a.wait(t, "b", "up once more", up)
}

// TestRouterPassive: a passive session sends nothing before the router's first packet, nor once the router is silent
// again (RFC 5880, 6.1, 6.8.7). An active session alongside it, without an answer, does send.
func TestRouterPassive(t *testing.T) {
	routers(t, func(t *testing.T, p *peer) {
		node, space := link(t)
		p.space = space
		nft(t, space, `table inet count {
			chain in { type filter hook prerouting priority 0;
				udp dport 3784 ip saddr 192.0.2.1 counter comment "passive"
				udp dport 3784 ip6 saddr 2001:db8::1 counter comment "active"
			}
		}`)
		a := start(t, node)
		passive := fast
		passive.Passive = true
		a.Set(map[string]Config{"passive": {Peer: addr("192.0.2.2"), Timers: passive}, "active": {Peer: addr("2001:db8::2"), Timers: fast}})
		silent := func(when string) { // for as long as the active one needs for three packets: more than two seconds
			t.Helper()
			before := counters(t, space)
			eventually.Nil(t, patience, when+" the active session sends", func(context.Context) error {
				n := counters(t, space)
				if n["passive"] > before["passive"] {
					t.Fatalf("%s it sends: %v, and before %v", when, n, before)
				}
				return eventually.Unless(n["active"] >= before["active"]+3, "%v, and before %v", n, before)
			})
		}
		silent("before the router's first packet")
		passive.Multiplier = 4 // a change that would be sent at once
		a.Set(map[string]Config{"passive": {Peer: addr("192.0.2.2"), Timers: passive}, "active": {Peer: addr("2001:db8::2"), Timers: fast}})
		silent("with other timers")
		if n := counters(t, space); n["passive"] > 0 {
			t.Fatalf("it sends first: %v", n)
		}
		p.start(t, []watchedBy{{node: "192.0.2.1", self: "192.0.2.2", interval: 100 * time.Millisecond}})
		a.wait(t, "passive", "up", agreed(100*time.Millisecond, 300*time.Millisecond))
		p.wait(t, "192.0.2.1", "up", func(s router.BFDSession) bool { return s.State == "Up" && s.Detect == 400*time.Millisecond })
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		a.wait(t, "passive", "down", func(s Status) bool { return down(s) && s.Reason == Expired && !s.Received })
		silent("after the router's end")
	})
}
