package bfd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestPair runs two Drivers with sessions to each other in every supported way.
func TestPair(t *testing.T) {
	t.Parallel()
	// Long enough that a busy machine does not take a session down before the silence does.
	timers := view.BFD{Receive: 300 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 5}
	const detection = 1500 * time.Millisecond
	multi := timers
	multi.MinimumTTL = 250
	near := timers
	near.Passive = true
	for _, c := range []struct {
		name     string
		far      bool
		a, b     string
		from, to Config
	}{
		{"ipv4", false, "192.0.2.1", "192.0.2.2", Config{Timers: timers}, Config{Timers: timers}},
		{"ipv6", false, "2001:db8::1", "2001:db8::2", Config{Timers: timers}, Config{Timers: timers}},
		{"link-local", false, "fe80::1%eth0", "fe80::2%eth0", Config{Timers: timers}, Config{Timers: timers}},
		{"passive", false, "192.0.2.1", "192.0.2.2", Config{Timers: near}, Config{Timers: timers}},
		{"local", false, "2001:db8::1", "2001:db8::2", Config{Local: addr("2001:db8::1"), Timers: timers}, Config{Local: addr("2001:db8::2"), Timers: timers}},
		{"multihop4", true, "192.0.2.1", "198.51.100.2", Config{MultiHop: true, Timers: timers}, Config{MultiHop: true, Timers: multi}},
		{"multihop6", true, "2001:db8:1::1", "2001:db8:2::2", Config{MultiHop: true, Timers: timers}, Config{MultiHop: true, Timers: multi}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := link
			if c.far {
				path = far
			}
			x, y := path(t)
			a, b := start(t, x), start(t, y)
			c.from.Peer, c.to.Peer = addr(c.b), addr(c.a)
			a.Set(map[string]Config{"b": c.from})
			b.Set(map[string]Config{"a": c.to})
			a.wait(t, "b", "up", agreed(timers.Transmit, detection))
			b.wait(t, "a", "up", agreed(timers.Transmit, detection))
			heal := silence(t, y)
			if is := a.wait(t, "b", "down", down); is.Reason != Expired || is.Detected < detection {
				t.Errorf("down: %+v", is)
			}
			heal()
			a.wait(t, "b", "up again", up)
		})
	}
}

// sockets lists the UDP sockets of a namespace.
func sockets(t *testing.T, space *netspace.Space) string {
	t.Helper()
	var out []byte
	space.Must(t, func() (err error) {
		out, err = exec.Command("ss", "--udp", "--all", "--numeric", "--no-header").Output()
		return err
	})
	return string(out)
}

// receives waits until n receiving sockets are open in a namespace.
func receives(t *testing.T, space *netspace.Space, n int) {
	t.Helper()
	eventually.Nil(t, patience, fmt.Sprintf("%d sockets for packets", n), func(context.Context) error {
		open, list := 0, sockets(t, space)
		for line := range strings.Lines(list) {
			if f := strings.Fields(line); len(f) > 3 && (strings.HasSuffix(f[3], ":3784") || strings.HasSuffix(f[3], ":4784")) {
				open++
			}
		}
		return eventually.Unless(open == n, "there are:\n%s", list)
	})
}

// TestLive adds, changes and removes sessions while another one stays up, and checks the sockets.
func TestLive(t *testing.T) {
	t.Parallel()
	x, y := link(t)
	a, b := start(t, x), start(t, y)
	a.Set(nil)
	if open := sockets(t, x); open != "" {
		t.Errorf("without sessions there are sockets:\n%s", open)
	}
	four := func(peer string) Config { return Config{Peer: addr(peer), Timers: steady} }
	six := func(peer string) Config { return Config{Peer: addr(peer), Timers: fast} }
	b.Set(map[string]Config{"four": four("192.0.2.1"), "six": six("2001:db8::1")})
	a.Set(map[string]Config{"four": four("192.0.2.2")})
	a.wait(t, "four", "up", up)
	since := a.is("four").Since
	a.Set(map[string]Config{"four": four("192.0.2.2"), "six": six("2001:db8::2")})
	a.wait(t, "six", "up", agreed(100*time.Millisecond, 300*time.Millisecond))
	source := func() string {
		for line := range strings.Lines(sockets(t, x)) {
			if f := strings.Fields(line); len(f) > 4 && f[4] == "192.0.2.2:3784" {
				return f[3]
			}
		}
		return ""
	}
	before := source()
	// Changed timers: negotiated without the session going down, from the same port.
	slower := six("2001:db8::2")
	slower.Timers.Transmit, slower.Timers.Receive, slower.Timers.Multiplier = 200*time.Millisecond, 400*time.Millisecond, 5
	a.Set(map[string]Config{"four": four("192.0.2.2"), "six": slower})
	a.wait(t, "six", "other timers", agreed(200*time.Millisecond, 1200*time.Millisecond))
	b.wait(t, "six", "other timers", agreed(400*time.Millisecond, time.Second))
	if after := source(); after != before || before == "" {
		t.Errorf("the source was %q, is %q", before, after)
	}
	// Invalid ones do not affect the others.
	a.Set(map[string]Config{"four": four("192.0.2.2"), "wrong": {Peer: addr("fe80::2")}})
	a.wait(t, "wrong", "its problem", func(s Status) bool { return strings.Contains(s.Problem, "needs its interface") })
	is := b.wait(t, "six", "notified", down)
	if is.Reason != PeerAdminDown || is.RemoteDiagnostic != AdministrativeDown {
		t.Errorf("the other side takes it for %+v", is)
	}
	if now := a.is("four"); !up(now) || now.Since != since || now.Downs != 0 {
		t.Errorf("the session that stays: %+v", now)
	}
	a.Set(nil)
	b.wait(t, "four", "notified", func(s Status) bool { return down(s) && s.Reason == PeerAdminDown })
	eventually.Nil(t, patience, "no socket after AdminDown", func(context.Context) error {
		list := sockets(t, x)
		return eventually.Unless(list == "", "there are:\n%s", list)
	})
}

// TestEndsSilently: nothing is sent at the end, and a restarted peer is accepted at once.
func TestEndsSilently(t *testing.T) {
	t.Parallel()
	x, y := link(t)
	a, b := start(t, x), start(t, y)
	a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: steady}})
	b.Set(map[string]Config{"a": {Peer: addr("192.0.2.1"), Timers: steady}})
	b.wait(t, "a", "up", agreed(300*time.Millisecond, 3*time.Second))
	a.stop()
	if is := b.wait(t, "a", "down", down); is.Reason != Expired || is.Detected < 3*time.Second {
		t.Errorf("down for %+v", is)
	}
	again := start(t, x)
	again.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: steady}})
	b.wait(t, "a", "up again", up)
	// Ended and restarted before the remote system detects it: the first packet shows it.
	again.stop()
	third := start(t, x)
	third.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: steady}})
	b.wait(t, "a", "down and up", func(s Status) bool { return up(s) && s.Downs == 2 })
	if got := b.states(); !strings.HasSuffix(got, "a Down, a Up") && !strings.HasSuffix(got, "a Down, a Init, a Up") || strings.Count(got, "a Up") != 3 {
		t.Errorf("states %s", got)
	}
}

// TestHop: a routed packet is ignored, whatever it contains (RFC 5881, 5), and so is one with too many hops by a
// multihop session.
func TestHop(t *testing.T) {
	t.Parallel()
	x, y := link(t)
	a := start(t, x)
	multi := fast
	multi.MinimumTTL = 254
	a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: fast}, "six": {Peer: addr("2001:db8::2"), Timers: fast},
		"multi": {Peer: addr("192.0.2.2"), MultiHop: true, Timers: multi}})
	receives(t, x, 3)
	hello := Packet{State: Down, Multiplier: 3, My: 7, DesiredTx: time.Second, RequiredRx: time.Second}
	dropped := a.metrics.dropped[DropTTL]
	reaches := func(drop Drop, n float64) {
		t.Helper()
		eventually.Nil(t, patience, fmt.Sprintf("%v dropped for %q", n, drop), func(context.Context) error {
			have := testutil.ToFloat64(a.metrics.dropped[drop])
			return eventually.Unless(have >= n, "%v were", have)
		})
	}
	inject(t, y, "192.0.2.2", "192.0.2.1", portMultiHop, 253, hello)
	reaches(DropTTL, 1)
	// Over one hop the kernel drops most of them (filter.go). Those that pass have been processed once the packet after
	// them is.
	for i, path := range [][2]string{{"192.0.2.2", "192.0.2.1"}, {"2001:db8::2", "2001:db8::1"}} {
		before := testutil.ToFloat64(dropped)
		injectTimes(t, 40*sample, y, path[0], path[1], portSingleHop, 254, hello)
		inject(t, y, path[0], path[1], portSingleHop, 255, Packet{State: Init, Multiplier: 3, My: 7})
		reaches(DropState, float64(i+1))
		if n := testutil.ToFloat64(dropped) - before; n < 10 || n > 90 {
			t.Errorf("of %d packets from off link %v were passed on, not some 40", 40*sample, n)
		}
	}
	for _, name := range []string{"b", "six", "multi"} {
		is := a.wait(t, name, "problem with the TTL", func(s Status) bool { return strings.Contains(s.Problem, "TTL") })
		if is.State != view.BFDDown || is.Received {
			t.Errorf("%s received it: %+v", name, is)
		}
	}
	inject(t, y, "192.0.2.2", "192.0.2.1", portSingleHop, 255, hello)
	inject(t, y, "2001:db8::2", "2001:db8::1", portSingleHop, 255, hello)
	inject(t, y, "192.0.2.2", "192.0.2.1", portMultiHop, 254, hello)
	for _, name := range []string{"b", "six", "multi"} {
		a.wait(t, name, "received", func(s Status) bool { return s.Received && s.State == view.BFDInit })
	}
}

// TestProblems: an error that prevents a session from working is reported, does not affect others, and is recovered
// from.
func TestProblems(t *testing.T) {
	t.Parallel()
	x, y := link(t)
	// Another program uses the port.
	var occupied int
	x.Must(t, func() (err error) {
		if occupied, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(occupied, &unix.SockaddrInet4{Port: portSingleHop})
	})
	a, b := start(t, x), start(t, y)
	b.Set(map[string]Config{"a": {Peer: addr("192.0.2.1"), Timers: fast}, "six": {Peer: addr("2001:db8::1"), Timers: fast}})
	a.Set(map[string]Config{
		"b": {Peer: addr("192.0.2.2"), Timers: fast}, "six": {Peer: addr("2001:db8::2"), Timers: fast},
		"nowhere": {Peer: addr("198.51.100.9"), MultiHop: true, Timers: fast},
		"strange": {Peer: addr("198.51.100.9"), Local: addr("203.0.113.7"), MultiHop: true, Timers: fast},
		"absent":  {Peer: addr("fe80::9%eth9"), Timers: fast},
	})
	a.wait(t, "six", "up", up)
	for name, words := range map[string]string{"b": "another BFD program uses the port", "nowhere": "network is unreachable",
		"strange": "cannot assign requested address", "absent": "eth9"} {
		a.wait(t, name, words, func(s Status) bool { return strings.Contains(s.Problem, words) })
	}
	unix.Close(occupied)
	a.wait(t, "b", "up", func(s Status) bool { return up(s) && s.Problem == "" })
	x.Route(t, "198.51.100.0/24", "192.0.2.2")
	a.wait(t, "nowhere", "no problem", func(s Status) bool { return s.Problem == "" })
}

// TestMarks checks the packets themselves: ports, TTL, DSCP.
func TestMarks(t *testing.T) {
	t.Parallel()
	x, y := link(t)
	// The router's side counts correct and incorrect packets.
	nft(t, y, `table inet count {
		chain in { type filter hook prerouting priority 0;
			udp dport 3784 ip ttl 255 ip dscp cs6 udp sport 49152-65535 counter accept comment "right of IPv4"
			udp dport 3784 ip6 hoplimit 255 ip6 dscp cs6 udp sport 49152-65535 counter accept comment "right of IPv6"
			udp dport 3784 counter comment "wrong"
		}
	}`)
	a := start(t, x)
	a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: fast}, "six": {Peer: addr("2001:db8::2"), Timers: fast}})
	eventually.Nil(t, patience, "packets of both families", func(context.Context) error {
		n := counters(t, y)
		return eventually.Unless(n["right of IPv4"] > 0 && n["right of IPv6"] > 0, "there are %v", n)
	})
	if n := counters(t, y); n["wrong"] > 0 {
		t.Errorf("packets: %v", n)
	}
}

// TestSourceFollows: a session that is down follows the kernel's choice of its source address.
func TestSourceFollows(t *testing.T) {
	t.Parallel()
	x, y := link(t)
	a, b := start(t, x), start(t, y)
	a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: fast}})
	b.Set(map[string]Config{"a": {Peer: addr("192.0.2.9"), Timers: fast}})
	a.wait(t, "b", "there", down)
	x.Must(t, func() error {
		return exec.Command("ip", "address", "replace", "192.0.2.9/24", "dev", "eth0").Run()
	})
	x.Must(t, func() error { return exec.Command("ip", "address", "del", "192.0.2.1/24", "dev", "eth0").Run() })
	x.Must(t, func() error { return exec.Command("ip", "address", "replace", "192.0.2.9/24", "dev", "eth0").Run() })
	a.wait(t, "b", "up", up)
}

// TestInterfaceReturns: a session between link-local addresses comes up again over an interface that was recreated with
// another index.
func TestInterfaceReturns(t *testing.T) {
	t.Parallel()
	x, y := link(t)
	a, b := start(t, x), start(t, y)
	a.Set(map[string]Config{"b": {Peer: addr("fe80::2%eth0"), Timers: fast}})
	b.Set(map[string]Config{"a": {Peer: addr("fe80::1%eth0"), Local: addr("fe80::2"), Timers: fast}})
	a.wait(t, "b", "up", up)
	b.wait(t, "a", "up", up)
	eth0, err := x.Handle.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Handle.LinkDel(eth0); err != nil {
		t.Fatal(err)
	}
	a.wait(t, "b", "down, for a reason", func(s Status) bool { return down(s) && s.Problem != "" })
	x.Must(t, func() error { // another index, most likely
		return exec.Command("ip", "link", "add", "other", "type", "veth", "peer", "name", "other-peer").Run()
	})
	netspace.Join(t, x, "eth0", "192.0.2.1/24", y, "eth0", "192.0.2.2/24")
	x.Address(t, "eth0", "fe80::1/64")
	y.Address(t, "eth0", "fe80::2/64")
	a.wait(t, "b", "up", func(s Status) bool { return up(s) && s.Problem == "" })
	b.wait(t, "a", "up", up)
}

// TestRouted: a peer with a zone is on that interface, with or without a route to it; another peer is on the interface
// of its route.
func TestRouted(t *testing.T) {
	t.Parallel()
	x, _ := link(t)
	eth0, err := x.Handle.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	x.Sysctl(t, "net.ipv6.conf.eth0.disable_ipv6", "1")
	for peer, want := range map[string]int{"fe80::2%eth0": eth0.Attrs().Index, "192.0.2.2": eth0.Attrs().Index, "fe80::2%eth9": 0,
		"2001:db8::2": 0} {
		x.Must(t, func() error {
			if got := (Config{Peer: addr(peer)}).key().routed(); got != want {
				t.Errorf("%s is on interface %d, not %d", peer, got, want)
			}
			return nil
		})
	}
}

// TestTickAllocatesNothing: a tick that receives and sends periodic packets allocates nothing.
func TestTickAllocatesNothing(t *testing.T) {
	core := newFixture(t, 1)
	core.pair(func(string) Config { return Config{Timers: fast} })
	core.run(3*time.Second, nil)
	s := core.sides["a"]
	var mine Packet
	s.core.Sessions(func(d uint32, _ Key, _ []string) { mine.Your = d })
	mine.My, mine.State, mine.Multiplier, mine.DesiredTx, mine.RequiredRx = s.core.sessions[0].remote.discr, Up, 3, 100*time.Millisecond, 100*time.Millisecond
	in := Datagram{Source: s.peer.addr, Local: s.addr, TTL: 255, Data: mine.Append(nil)}
	buffer := make([]byte, 0, PacketLen)
	now := core.now
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(100 * time.Millisecond)
		if r := s.core.Receive(now, in); r.Drop != Accepted {
			t.Fatal(r.Drop)
		}
		s.core.Tick(now)
		for _, out := range s.core.Out() {
			buffer = out.Packet.Append(buffer[:0])
		}
		if s.core.Changed() != nil {
			t.Fatal("something changed")
		}
		s.core.Next()
	}); n != 0 {
		t.Errorf("a tick of the core allocates %v times", n)
	}
}

// TestPacketAllocatesNothing: a packet through the sockets allocates nothing either.
func TestPacketAllocatesNothing(t *testing.T) {
	x, _ := link(t)
	p := Packet{State: Up, Multiplier: 3, My: 7, DesiredTx: time.Second, RequiredRx: time.Second}
	data := p.Append(nil)
	x.Must(t, func() error {
		r := &receiver{kind: kind{}, fd: -1}
		if err := r.open(); err != nil {
			return err
		}
		defer r.close()
		to := sender{key: Key{Peer: addr("192.0.2.1")}, fd: -1}
		if err := to.open(rand.New(rand.NewPCG(1, 2)), func(uint16) bool { return false }); err != nil {
			return err
		}
		defer to.close()
		if n := testing.AllocsPerRun(100, func() {
			if err := to.send(data); err != nil {
				t.Fatal(err)
			}
			got, index, ok := r.read()
			if !ok || index == 0 || got.TTL != 255 || got.Source != addr("192.0.2.1") || got.Local != addr("192.0.2.1") || !slices.Equal(got.Data, data) {
				t.Fatalf("read %+v on %d, %v", got, index, ok)
			}
		}); n != 0 {
			t.Errorf("a packet on its way allocates %v times", n)
		}
		return nil
	})
}
