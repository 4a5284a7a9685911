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
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/link/dump"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/test/eventually"
)

const patience = 10 * time.Second

// segment is a node with an announcer and a foreign host on one wire.
type segment struct {
	node, host *netspace.Space
	announcer  *Announcer
	registry   *prometheus.Registry
	log        *lines
	woken      chan struct{}
	self, peer mac
	on         string // the node's interface
}

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// with returns the lines that contain a text.
func (l *lines) with(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

// join creates the wire, with an address of each family at both ends.
func join(t testing.TB) *segment {
	t.Helper()
	s := &segment{node: netspace.New(t), host: netspace.New(t), woken: make(chan struct{}, 1), log: &lines{},
		registry: prometheus.NewRegistry(), on: "eth0"}
	netspace.Join(t, s.node, "eth0", "203.0.113.1/24", s.host, "eth0", "203.0.113.200/24")
	s.node.Address(t, "eth0", "2001:db8::1/64")
	s.host.Address(t, "eth0", "2001:db8::c8/64")
	s.self, s.peer = mac(s.node.MAC(t, "eth0")), mac(s.host.MAC(t, "eth0"))
	return s
}

// newSegment is join with the announcer running.
func newSegment(t testing.TB, change func(*Config)) *segment {
	t.Helper()
	s := join(t)
	cfg := Config{Log: slog.New(slog.NewTextHandler(s.log, nil)), Metrics: s.registry, Wake: func() {
		select {
		case s.woken <- struct{}{}:
		default:
		}
	}}
	if change != nil {
		change(&cfg)
	}
	s.announcer = New(cfg)
	runs(t, s.announcer)
	t.Cleanup(func() {
		// Closing a socket deliberately logs no warning.
		if bad := s.log.with("read failed"); len(bad) > 0 {
			t.Errorf("log:\n%s", bad)
		}
	})
	return s
}

// runs runs the announcer until the test ends, and returns a function to stop it earlier.
func runs(t testing.TB, a *Announcer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// on returns an announcement on these interfaces.
func on(names ...string) ownership.Announcement {
	return ownership.Announcement{VIP: "vip", Interfaces: names}
}

// announce passes the full set to the announcer and returns what it holds.
func (s *segment) announce(t testing.TB, set map[netip.Addr]ownership.Announcement) map[netip.Addr][]string {
	t.Helper()
	var held map[netip.Addr][]string
	s.node.Must(t, func() (err error) {
		held, err = s.announcer.Announce(set)
		return err
	})
	return held
}

// hold makes the announcer answer for exactly these addresses on the node's interface.
func (s *segment) hold(t testing.TB, addrs ...netip.Addr) {
	t.Helper()
	set, want := map[netip.Addr]ownership.Announcement{}, map[netip.Addr][]string{}
	for _, a := range addrs {
		set[a], want[a] = on(s.on), []string{s.on}
	}
	if held := s.announce(t, set); !same(held, want) {
		t.Fatalf("answers on %v, want %v", held, want)
	}
}

func same(a, b map[netip.Addr][]string) bool { return maps.EqualFunc(a, b, slices.Equal[[]string]) }

// waitWake waits until the announcer wakes its caller.
func (s *segment) waitWake(t testing.TB) {
	t.Helper()
	select {
	case <-s.woken:
	case <-time.After(patience):
		t.Fatal("not woken")
	}
}

// side is one family of a segment, with a socket of the host on the wire.
type side struct {
	*segment
	family int
	codec  codec
	vip    [4]netip.Addr
	host   netip.Addr // the host's address
	port   string     // the host's interface
	conn   *packet.Conn
}

// bothFamilies runs a test for each family on its own segment.
func bothFamilies(t *testing.T, test func(t *testing.T, s *side)) {
	for family := range families {
		t.Run(codecs[family].family(), func(t *testing.T) {
			t.Parallel()
			test(t, newSegment(t, nil).side(t, family))
		})
	}
}

func (s *segment) side(t testing.TB, family int) *side {
	out := &side{segment: s, family: family, codec: codecs[family], host: host, port: "eth0"}
	first := "203.0.113.4"
	if family == ipv6 {
		first, out.host = "2001:db8::4", host6
	}
	copy(out.vip[:], addrsFrom(first, len(out.vip)))
	out.conn = s.socket(t, s.host, family)
	return out
}

// socket opens a packet socket for a family on the interface of a namespace.
func (s *segment) socket(t testing.TB, space *netspace.Space, family int) *packet.Conn {
	t.Helper()
	var conn *packet.Conn
	space.Must(t, func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		conn, err = packet.Listen(ifi, packet.Raw, codecs[family].etherType(), nil)
		return err
	})
	t.Cleanup(func() { conn.Close() })
	return conn
}

// transmit sends a frame from the host.
func (s *side) transmit(t testing.TB, raw []byte) {
	t.Helper()
	if _, err := s.conn.WriteTo(raw, &packet.Addr{HardwareAddr: raw[:6]}); err != nil {
		t.Fatal(err)
	}
}

// request returns the host's request for a target; with another sender than the host it uses that address, or probes
// for it.
func (s *side) request(sender, target netip.Addr) []byte {
	if s.family == ipv4 {
		return arpFrame{dst: broadcast, src: s.peer, op: opRequest, senderMAC: s.peer, senderIP: sender, targetIP: target}.bytes()
	}
	n := neighbor{dst: groupMAC(solicitedNode(target)), src: s.peer, from: sender, to: solicitedNode(target),
		kind: typeSolicitation, target: target, lladdr: s.peer}
	if sender.IsUnspecified() {
		n.lladdr = mac{}
	}
	return n.bytes()
}

func (s *side) unspecified() netip.Addr {
	if s.family == ipv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// takeOver returns the announcement of a host that takes the address over, from a MAC.
func (s *side) takeOver(by mac, addr netip.Addr) []byte {
	return must(s.codec.announcement(station{mac: by}, addr, asRequest))
}

// next returns the next frame of the node that accept accepts. Frames arrive in the order in which they were sent.
func (s *side) next(t testing.TB, what string, accept func(message, []byte) bool) []byte {
	t.Helper()
	if err := s.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1514)
	for {
		n, _, err := s.conn.ReadFrom(buf)
		if err != nil {
			t.Fatalf("no %s: %v", what, err)
		}
		if m, err := s.codec.parse(buf[:n]); err == nil && mac(buf[6:12]) == s.self && accept(m, buf[:n]) {
			return slices.Clone(buf[:n])
		}
	}
}

// reply returns the next answer to the host. Answers arrive in the order of the requests, so an answer to an earlier
// request would come first: no test needs to wait for silence.
func (s *side) reply(t testing.TB) []byte {
	t.Helper()
	return s.next(t, "answer", func(m message, _ []byte) bool { return m.dst == s.peer && !m.target.IsValid() })
}

// wantReply checks that the next answer is exactly the one for the target.
func (s *side) wantReply(t testing.TB, target netip.Addr) {
	t.Helper()
	var want []byte
	if s.family == ipv4 {
		want = arpFrame{dst: s.peer, src: s.self, op: opReply, senderMAC: s.self, senderIP: target, targetMAC: s.peer, targetIP: s.host}.bytes()
	} else {
		want = neighbor{dst: s.peer, src: s.self, from: target, to: s.host, kind: typeAdvertisement,
			flags: flagSolicited | flagOverride, target: target, lladdr: s.self}.bytes()
	}
	if got := s.reply(t); !bytes.Equal(got[:len(want)], want) {
		t.Fatalf("answer %x, want %x for %v", got, want, target)
	}
}

// answered sends a request and checks that exactly this request is answered.
func (s *side) answered(t testing.TB, target netip.Addr) {
	t.Helper()
	s.transmit(t, s.request(s.host, target))
	s.wantReply(t, target)
}

// neighbor returns the host's neighbor entry of an address.
func (s *side) neighbor(t testing.TB, addr netip.Addr) mac {
	t.Helper()
	list, err := dump.Complete(func() ([]netlink.Neigh, error) {
		return s.segment.host.Handle.NeighList(linkOf(t, s.segment.host, s.port).Attrs().Index, netlink.FAMILY_ALL)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		if got, _ := netip.AddrFromSlice(n.IP); got.Unmap() == addr && len(n.HardwareAddr) == 6 {
			return mac(n.HardwareAddr)
		}
	}
	return mac{}
}

// setNeighbor gives the host an entry of an earlier owner.
func (s *side) setNeighbor(t testing.TB, addr netip.Addr, m mac) {
	t.Helper()
	err := s.segment.host.Handle.NeighSet(&netlink.Neigh{LinkIndex: linkOf(t, s.segment.host, s.port).Attrs().Index,
		Family: map[int]int{ipv4: netlink.FAMILY_V4, ipv6: netlink.FAMILY_V6}[s.family],
		State:  netlink.NUD_REACHABLE, IP: addr.AsSlice(), HardwareAddr: m[:]})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *side) wantNeighbor(t testing.TB, addr netip.Addr, want mac) {
	t.Helper()
	eventually.True(t, patience, "the host's neighbor entry of "+addr.String()+" is the node's", func() bool { return s.neighbor(t, addr) == want })
}

// learns makes the host's own kernel resolve the address, as for any packet that it sends.
func (s *side) learns(t testing.TB, addr netip.Addr) {
	t.Helper()
	s.segment.host.Must(t, func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(addr, 9).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("hello"))
		return err
	})
	s.wantNeighbor(t, addr, s.self)
}

// addresses lists the addresses of an interface; an interrupted dump is repeated.
func addresses(space *netspace.Space, link netlink.Link, family int) ([]netlink.Addr, error) {
	return dump.Complete(func() ([]netlink.Addr, error) { return space.Handle.AddrList(link, family) })
}

func linkOf(t testing.TB, space *netspace.Space, name string) netlink.Link {
	t.Helper()
	link, err := space.Handle.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// waitCarrier waits until the interface is up with carrier.
func waitCarrier(t testing.TB, space *netspace.Space, name string) {
	t.Helper()
	const up = unix.IFF_UP | unix.IFF_LOWER_UP
	eventually.True(t, patience, name+" has carrier", func() bool { return linkOf(t, space, name).Attrs().RawFlags&up == up })
}

// count returns the value of a counter or gauge, or the number of a histogram's observations.
func (s *segment) count(t testing.TB, name, family string) float64 {
	t.Helper()
	all, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range all {
		for _, m := range of.Metric {
			if of.GetName() == "ironlb_l2_"+name && m.Label[0].GetValue() == family {
				return m.Counter.GetValue() + m.Gauge.GetValue() + float64(m.Histogram.GetSampleCount())
			}
		}
	}
	t.Fatalf("no metric %s of %s", name, family)
	return 0
}
