package l2

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/plan"
)

const patience = 5 * time.Second

// segment is a node with an announcer and a foreign host on one wire.
type segment struct {
	node, host *netspace.Space
	announcer  *Announcer
	self, peer mac
	conn       *packet.Conn // of the host
	kicked     chan struct{}
}

func newSegment(t *testing.T) *segment {
	t.Helper()
	s := &segment{node: netspace.New(t), host: netspace.New(t), kicked: make(chan struct{}, 1)}
	netspace.Join(t, s.node, "eth0", "203.0.113.1/24", s.host, "eth0", "203.0.113.200/24")
	s.self, s.peer = mac(s.node.MAC(t, "eth0")), mac(s.host.MAC(t, "eth0"))
	var log bytes.Buffer
	s.announcer = New(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Kick: func() {
		select {
		case s.kicked <- struct{}{}:
		default:
		}
	}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.announcer.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		// Closing a socket of our own is nothing to warn of.
		if strings.Contains(log.String(), "cannot read") {
			t.Errorf("log:\n%s", log.String())
		}
	})
	s.host.Must(t, func() (err error) {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		s.conn, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_ARP, nil)
		return err
	})
	t.Cleanup(func() { s.conn.Close() })
	return s
}

// announce makes the announcer answer for the addresses in their subnet and checks on which interfaces it does.
func (s *segment) announce(t *testing.T, want map[string][]string, addrs ...string) {
	t.Helper()
	set := map[netip.Addr]plan.Announcement{}
	for _, a := range addrs {
		set[netip.MustParseAddr(a)] = plan.Announcement{VIP: a, Interfaces: []string{"eth0"}}
	}
	s.announceSet(t, want, set)
}

func (s *segment) announceSet(t *testing.T, want map[string][]string, set map[netip.Addr]plan.Announcement) {
	t.Helper()
	var held map[netip.Addr][]string
	s.node.Must(t, func() (err error) {
		held, err = s.announcer.Announce(set)
		return err
	})
	got := map[string][]string{}
	for a, on := range held {
		got[a.String()] = on
	}
	if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Fatalf("answers on %v, want %v", got, want)
	}
}

// tell sends a frame from the host.
func (s *segment) tell(t *testing.T, raw []byte) {
	t.Helper()
	if _, err := s.conn.WriteTo(raw, &packet.Addr{HardwareAddr: raw[:6]}); err != nil {
		t.Fatal(err)
	}
}

func (s *segment) ask(t *testing.T, target string, change func(*frame)) {
	t.Helper()
	f := frame{dst: broadcast, src: s.peer, op: opRequest, senderMAC: s.peer, senderIP: host, targetIP: netip.MustParseAddr(target)}
	if change != nil {
		change(&f)
	}
	s.tell(t, f.bytes())
}

// reply returns the next reply to the host. Replies come in the order of the requests, so that of an earlier request
// would come first: no test needs to wait for silence.
func (s *segment) reply(t *testing.T) frame {
	t.Helper()
	if err := s.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 128)
	for {
		n, _, err := s.conn.ReadFrom(buf)
		if err != nil {
			t.Fatalf("no reply: %v", err)
		}
		if f, err := parse(buf[:n]); err == nil && f.op == opReply && f.dst == s.peer {
			return f
		}
	}
}

// answered asks and checks that this very question is answered.
func (s *segment) answered(t *testing.T, target string) {
	t.Helper()
	s.ask(t, target, nil)
	want := frame{dst: s.peer, src: s.self, op: opReply, senderMAC: s.self, senderIP: netip.MustParseAddr(target),
		targetMAC: s.peer, targetIP: host}
	if got := s.reply(t); got != want {
		t.Fatalf("reply %+v, want %+v", got, want)
	}
}

// neighbour returns the host's neighbour entry of an address.
func (s *segment) neighbour(t *testing.T, addr string) (mac, bool) {
	t.Helper()
	link, err := s.host.Handle.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.host.Handle.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		if n.IP.String() == addr && len(n.HardwareAddr) == 6 {
			return mac(n.HardwareAddr), true
		}
	}
	return mac{}, false
}

func (s *segment) wantNeighbour(t *testing.T, addr string, want mac) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		got, ok := s.neighbour(t, addr)
		if ok && got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the host's neighbour entry of %s is %x (%v), want %x", addr, got, ok, want)
		}
	}
}

// setNeighbour gives the host an entry as an earlier owner left it.
func (s *segment) setNeighbour(t *testing.T, addr string, m mac) {
	t.Helper()
	link, err := s.host.Handle.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	err = s.host.Handle.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4,
		State: netlink.NUD_REACHABLE, IP: net.ParseIP(addr), HardwareAddr: m[:]})
	if err != nil {
		t.Fatal(err)
	}
}

var onEth0 = []string{"eth0"}

func TestForeignHostLearnsOurMAC(t *testing.T) {
	s := newSegment(t)
	s.announce(t, map[string][]string{"203.0.113.4": onEth0}, "203.0.113.4")
	// The host's own kernel asks, as for any packet that it sends.
	s.host.Must(t, func() error {
		conn, err := net.Dial("udp4", "203.0.113.4:9")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("hello"))
		return err
	})
	s.wantNeighbour(t, "203.0.113.4", s.self)
}

func TestOnlyWhatIsOursIsAnswered(t *testing.T) {
	s := newSegment(t)
	s.announce(t, map[string][]string{"203.0.113.4": onEth0, "203.0.113.5": onEth0}, "203.0.113.4", "203.0.113.5")
	other := mac{2, 0, 0, 0, 0, 0x77}
	s.ask(t, "203.0.113.6", nil)                                                 // not owned
	s.ask(t, "203.0.113.4", func(f *frame) { f.dst = other })                    // sent to another station
	s.ask(t, "203.0.113.4", func(f *frame) { f.dst = mac{1, 0, 0x5e, 0, 0, 1} }) // sent to a group
	s.ask(t, "203.0.113.4", func(f *frame) { f.op = opReply })
	s.ask(t, "203.0.113.4", func(f *frame) { f.senderIP = f.targetIP }) // gratuitous
	tagged := frame{dst: broadcast, src: s.peer, op: opRequest, senderMAC: s.peer, senderIP: host, targetIP: vip}.bytes()
	s.tell(t, slices.Concat(tagged[:12], []byte{0x81, 0, 0, 7}, tagged[12:])) // VLAN 7, which has no interface here
	s.answered(t, "203.0.113.5")
	s.ask(t, "203.0.113.4", func(f *frame) { f.dst = s.self }) // a neighbour that verifies its entry
	if got := s.reply(t); got.senderIP != vip || got.senderMAC != s.self {
		t.Errorf("reply to a unicast request: %+v", got)
	}
}

func TestWithdrawnIsNotAnswered(t *testing.T) {
	s := newSegment(t)
	s.announce(t, map[string][]string{"203.0.113.4": onEth0, "203.0.113.5": onEth0}, "203.0.113.4", "203.0.113.5")
	s.answered(t, "203.0.113.4")
	s.announce(t, map[string][]string{"203.0.113.5": onEth0}, "203.0.113.5")
	s.ask(t, "203.0.113.4", nil)
	s.answered(t, "203.0.113.5")
	s.announce(t, map[string][]string{})
	s.ask(t, "203.0.113.4", nil)
	s.ask(t, "203.0.113.5", nil)
	s.announce(t, map[string][]string{"203.0.113.6": onEth0}, "203.0.113.6")
	s.answered(t, "203.0.113.6")
}

func TestManyAddresses(t *testing.T) {
	s := newSegment(t)
	want := map[string][]string{}
	var all []string
	for _, a := range addrsFrom("203.0.113.10", exactLimit+10) {
		all = append(all, a.String())
		want[a.String()] = onEth0
	}
	s.announce(t, want, all...)
	s.ask(t, "203.0.113.9", nil)   // within the common prefix that the filter passes
	s.ask(t, "203.0.113.100", nil) // as well
	for _, a := range all {
		s.answered(t, a)
	}
}

func TestTakingOverCorrectsNeighbours(t *testing.T) {
	s := newSegment(t)
	before := mac{2, 0, 0, 0, 0, 0x77}
	s.setNeighbour(t, "203.0.113.4", before)
	s.announce(t, map[string][]string{"203.0.113.4": onEth0}, "203.0.113.4")
	s.wantNeighbour(t, "203.0.113.4", s.self)
	// The first announcement has both forms; the request form has the sender's address as target and no target MAC, the
	// reply form the sender's own MAC.
	requests, replies := 0, 0
	if err := s.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 128)
	for requests < len(steps)-2 || replies < 1 {
		n, _, err := s.conn.ReadFrom(buf)
		if err != nil {
			t.Fatalf("%d gratuitous requests, %d replies, then: %v", requests, replies, err)
		}
		f, err := parse(buf[:n])
		switch {
		case err != nil || f.src != s.self || f.senderIP != vip:
		case f == gratuitousRequest(s.self, vip):
			requests++
		case f == gratuitousReply(s.self, vip):
			replies++
		default:
			t.Errorf("unexpected %+v", f)
		}
	}
}

// An interface that goes down is left, and served anew with announcements when it is up again.
func TestInterfaceDownAndUp(t *testing.T) {
	s := newSegment(t)
	s.announce(t, map[string][]string{"203.0.113.4": onEth0}, "203.0.113.4")
	link, err := s.node.Handle.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.node.Handle.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.kicked:
	case <-time.After(patience):
		t.Fatal("not kicked when the interface went down")
	}
	s.announce(t, map[string][]string{}, "203.0.113.4")
	if err := s.node.Handle.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	s.waitCarrier(t)
	s.setNeighbour(t, "203.0.113.4", mac{2, 0, 0, 0, 0, 0x77})
	s.announcer.Refresh()
	s.announce(t, map[string][]string{"203.0.113.4": onEth0}, "203.0.113.4")
	s.wantNeighbour(t, "203.0.113.4", s.self)
	s.answered(t, "203.0.113.4")
}

// waitCarrier waits until both ends see the wire.
func (s *segment) waitCarrier(t *testing.T) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		ready := true
		for _, space := range []*netspace.Space{s.node, s.host} {
			link, err := space.Handle.LinkByName("eth0")
			if err != nil {
				t.Fatal(err)
			}
			ready = ready && speaksARP(link.Attrs())
		}
		if ready {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the interfaces do not come up")
		}
	}
}

func TestInterfacesAreChosen(t *testing.T) {
	s := newSegment(t)
	third := netspace.New(t)
	netspace.Join(t, s.node, "eth1", "198.51.100.1/24", third, "eth0", "198.51.100.200/24")
	inSubnet := plan.Announcement{Interfaces: []string{"eth0"}}
	named := func(names ...string) plan.Announcement { return plan.Announcement{Interfaces: names} }
	a := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, n}) }
	s.announceSet(t, map[string][]string{
		"203.0.113.4":   {"eth0"},
		"198.51.100.4":  {"eth1"},
		"203.0.113.5":   {"eth1"},
		"203.0.113.6":   {"eth0", "eth1"},
		"203.0.113.7":   {"eth0", "eth1"},
		"203.0.113.200": {"eth0"},
	}, map[netip.Addr]plan.Announcement{
		a(4):                                inSubnet,
		netip.MustParseAddr("198.51.100.4"): inSubnet,
		a(5):                                named("eth1"),
		a(6):                                named("eth0", "eth1", "absent"),
		a(7):                                {Interfaces: []string{"eth0", "eth1"}},
		a(8):                                named("lo"),
		netip.MustParseAddr("192.0.2.4"):    inSubnet,
		a(200):                              inSubnet,
	})
	s.ask(t, "203.0.113.5", nil) // only on eth1
	s.answered(t, "203.0.113.6")
}

// A socket that refuses its filter is opened again.
func TestFilterFails(t *testing.T) {
	s := newSegment(t)
	s.announce(t, map[string][]string{"203.0.113.4": onEth0}, "203.0.113.4")
	for _, r := range s.announcer.responders {
		raw, err := r.conn.SyscallConn()
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
	want := map[netip.Addr]plan.Announcement{vip: {Interfaces: []string{"eth0"}}, netip.MustParseAddr("203.0.113.5"): {Interfaces: []string{"eth0"}}}
	s.node.Must(t, func() error {
		if held, err := s.announcer.Announce(want); err == nil || len(held) > 0 {
			t.Errorf("answers on %v although its filter could not be attached, error %v", held, err)
		}
		return nil
	})
	s.announceSet(t, map[string][]string{"203.0.113.4": onEth0, "203.0.113.5": onEth0}, want)
	s.answered(t, "203.0.113.5")
}

// The port of a bridge hears nothing; the bridge answers, with its own MAC.
func TestBridgeAnswersForItsPort(t *testing.T) {
	s := newSegment(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := s.node.Handle.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	port, err := s.node.Handle.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.node.Handle.LinkSetMaster(port, bridge); err != nil {
		t.Fatal(err)
	}
	if err := s.node.Handle.LinkSetUp(bridge); err != nil {
		t.Fatal(err)
	}
	s.node.Address(t, "br0", "203.0.113.1/24")
	s.self = mac(s.node.MAC(t, "br0"))
	set := map[netip.Addr]plan.Announcement{
		vip:                                {Interfaces: []string{"eth0"}},
		netip.MustParseAddr("203.0.113.5"): {Interfaces: []string{"eth0"}},
		netip.MustParseAddr("203.0.113.6"): {Interfaces: []string{"eth0", "br0"}},
	}
	// A bridge has carrier once its port forwards, which nothing here announces.
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		br0, err := s.node.Handle.LinkByName("br0")
		if err != nil {
			t.Fatal(err)
		}
		if speaksARP(br0.Attrs()) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the bridge has no carrier")
		}
	}
	s.announceSet(t, map[string][]string{"203.0.113.4": {"br0"}, "203.0.113.6": {"br0"}}, set)
	s.ask(t, "203.0.113.5", nil)
	s.answered(t, "203.0.113.4")
}

func TestStoppedAnnouncerAnswersNothing(t *testing.T) {
	s := newSegment(t)
	ctx, stop := context.WithCancel(t.Context())
	other := New(Config{Log: slog.New(slog.DiscardHandler)})
	done := make(chan error, 1)
	go func() { done <- other.Run(ctx) }()
	s.node.Must(t, func() error {
		_, err := other.Announce(map[netip.Addr]plan.Announcement{vip: {Interfaces: []string{"eth0"}}})
		return err
	})
	s.answered(t, "203.0.113.4")
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.ask(t, "203.0.113.4", nil)
	s.announce(t, map[string][]string{"203.0.113.5": onEth0}, "203.0.113.5")
	s.answered(t, "203.0.113.5")
	if _, err := other.Announce(nil); err == nil {
		t.Error("a stopped announcer takes addresses")
	}
}
