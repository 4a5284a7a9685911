package member_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/view"
)

var secret = bytes.Repeat([]byte("k"), 32)

// patience is how long a test waits for an expected event.
const patience = 20 * time.Second

// node is a Detector in its own namespace, on a LAN and on a node network that are bridges in a third namespace.
type node struct {
	*member.Detector
	name     string
	hub      *hub
	space    *netspace.Space
	wakes    chan struct{}
	registry *prometheus.Registry
	stop     context.CancelFunc
	ended    chan error
	seen     view.Members
	log      journal
}

// journal is a log that can be read while it is written.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), text)
}

// hub joins nodes by two bridges.
type hub struct {
	space     *netspace.Space
	nodes     []*node
	broadcast bool // new nodes send by broadcast
}

func newHub(t *testing.T, names ...string) *hub {
	h := &hub{space: netspace.New(t)}
	for _, bridge := range []string{"lan", "mgmt"} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge
		if err := h.space.Handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			t.Fatal(err)
		}
		h.up(t, bridge, true)
	}
	h.add(t, names...)
	return h
}

// add joins nodes to the bridges and starts them.
func (h *hub) add(t *testing.T, names ...string) {
	for i, name := range names {
		n := &node{name: name, hub: h, space: netspace.New(t)}
		digit := string(rune('1' + i))
		for _, network := range []struct{ bridge, iface, prefix string }{{"lan", "eth0", "192.0.2."}, {"mgmt", "eth1", "198.51.100."}} {
			port := network.bridge + digit
			netspace.Join(t, h.space, port, "203.0.113."+digit+"/32", n.space, network.iface, network.prefix+digit+"/24")
			h.enslave(t, port, network.bridge)
		}
		h.nodes = append(h.nodes, n)
	}
	for _, n := range h.nodes {
		h.begin(t, n)
	}
}

func (h *hub) enslave(t *testing.T, port, bridge string) {
	t.Helper()
	p, err := h.space.Handle.LinkByName(port)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.space.Handle.LinkByName(bridge)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.space.Handle.LinkSetMaster(p, b); err != nil {
		t.Fatal(err)
	}
}

// free removes a port from its bridge: the carrier stays.
func (h *hub) free(t *testing.T, port string) {
	t.Helper()
	p, err := h.space.Handle.LinkByName(port)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.space.Handle.LinkSetNoMaster(p); err != nil {
		t.Fatal(err)
	}
}

// up sets an interface of the hub up or down.
func (h *hub) up(t *testing.T, name string, up bool) {
	t.Helper()
	link, err := h.space.Handle.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	set := h.space.Handle.LinkSetDown
	if up {
		set = h.space.Handle.LinkSetUp
	}
	if err := set(link); err != nil {
		t.Fatal(err)
	}
}

// begin starts a node's Detector.
func (h *hub) begin(t *testing.T, n *node) {
	t.Helper()
	n.wakes = make(chan struct{}, 1)
	n.registry = prometheus.NewRegistry()
	wakes := n.wakes
	var err error
	n.Detector, err = member.New(member.Options{
		Node: n.name, Cluster: "default", Keys: [][]byte{secret}, Profile: member.Standard, Log: slog.New(slog.NewTextHandler(&n.log, nil)),
		Metrics: n.registry, Broadcast: h.broadcast,
		Wake: func() {
			select {
			case wakes <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	peers := map[string][]netip.Addr{}
	for i, other := range h.nodes {
		peers[other.name] = []netip.Addr{netip.MustParseAddr("198.51.100." + string(rune('1'+i)))}
	}
	n.SetPeers(peers)
	n.SetSegments([]string{"eth0"})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	detector := n.Detector
	go func() { ended <- n.space.Do(func() error { return detector.Run(ctx) }) }()
	n.stop, n.ended = cancel, ended
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	})
}

// until waits until the observed state is as wanted, and returns how long that took.
func (n *node) until(t *testing.T, what string, ok func(view.Members) bool) time.Duration {
	t.Helper()
	start := time.Now()
	deadline, ticker := time.After(patience), time.NewTicker(100*time.Millisecond)
	defer ticker.Stop()
	for {
		n.seen, _, _ = n.Observe()
		if ok(n.seen) {
			return time.Since(start)
		}
		select {
		case <-n.wakes:
		case <-ticker.C:
			n.hub.observe()
		case <-deadline:
			t.Fatalf("%s: not yet %s after %v: %+v", n.name, what, patience, n.seen)
		}
	}
}

// observe observes all nodes, and lets each that a stall fenced publish that it holds nothing, as a speaker does: until
// then it stays an observer.
func (h *hub) observe() {
	for _, n := range h.nodes {
		if m, _, _ := n.Observe(); m.Observer {
			n.Publish(view.LocalState{})
		}
	}
}

func receivesAll(names ...string) func(view.Members) bool {
	return func(m view.Members) bool {
		for _, name := range names {
			if _, on := m.Peers[name].On["eth0"]; !on {
				return false
			}
		}
		return !m.Observer && len(m.Isolated) == 0
	}
}

func lacks(name string) func(view.Members) bool {
	return func(m view.Members) bool {
		_, on := m.Peers[name].On["eth0"]
		return !on
	}
}

// others returns the names of the other nodes.
func (h *hub) others(n *node) (names []string) {
	for _, o := range h.nodes {
		if o != n {
			names = append(names, o.name)
		}
	}
	return names
}

func (h *hub) settle(t *testing.T) {
	t.Helper()
	for _, n := range h.nodes {
		n.until(t, "receives "+strings.Join(h.others(n), " "), receivesAll(h.others(n)...))
	}
}

func TestDetectorFindsDeadNode(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	h.up(t, "lan1", false)
	h.up(t, "mgmt1", false)
	for _, n := range h.nodes[1:] {
		n.until(t, "a is dead", func(m view.Members) bool { return lacks("a")(m) && !m.Peers["a"].Alive })
	}
	// Back: nothing was restarted, so it is received at once.
	h.up(t, "lan1", true)
	h.up(t, "mgmt1", true)
	h.settle(t)
}

// The switch port of one node is disconnected from the LAN, but keeps its carrier; the node network works.
func TestDetectorFindsLinkCut(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	h.free(t, "lan1")
	for _, n := range h.nodes[1:] {
		n.until(t, "a is dead on the LAN", lacks("a"))
		if !n.seen.Peers["a"].Alive {
			t.Errorf("%s: a is alive on the node network", n.name)
		}
	}
	h.nodes[0].until(t, "isolated", func(m view.Members) bool { _, is := m.Isolated["eth0"]; return is })
	h.enslave(t, "lan1", "lan")
	h.settle(t)
}

func TestDetectorLosesCarrier(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	h.up(t, "lan1", false)
	h.nodes[0].SetSegments([]string{"eth0"}) // as the caller does on a netlink event
	h.nodes[0].until(t, "receives no node on the LAN", func(m view.Members) bool { return lacks("b")(m) && lacks("c")(m) && m.Peers["b"].Alive })
	h.nodes[1].until(t, "a is dead on the LAN", lacks("a"))
	h.up(t, "lan1", true)
	h.nodes[0].SetSegments([]string{"eth0"})
	h.settle(t)
}

// An interface is deleted and recreated with the same name and another address.
func TestDetectorInterfaceReturns(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	port, err := h.space.Handle.LinkByName("lan1")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.space.Handle.LinkDel(port); err != nil {
		t.Fatal(err)
	}
	h.nodes[1].until(t, "a is dead on the LAN", lacks("a"))
	netspace.Join(t, h.space, "lan1", "203.0.113.1/32", h.nodes[0].space, "eth0", "192.0.2.77/24")
	h.enslave(t, "lan1", "lan")
	h.nodes[0].SetSegments([]string{"eth0"})
	h.settle(t)
	mac := [6]byte(h.nodes[0].space.MAC(t, "eth0"))
	for _, n := range h.nodes[1:] {
		n.until(t, "has the new hardware address", func(view.Members) bool { return n.MACs()[mac] == "a" })
	}
}

func TestDetectorGoodbye(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	a, b := h.nodes[0], h.nodes[1]
	if !a.Fresh() {
		t.Error("it runs and is not fresh")
	}
	a.stop()
	took := b.until(t, "a is gone", func(m view.Members) bool { return !m.Peers["a"].Alive })
	if took >= member.Standard.Dead {
		t.Errorf("after %v, as by its silence", took)
	}
	if err := <-a.ended; err != nil {
		t.Fatal(err)
	}
	a.ended <- nil
	if a.Fresh() || !a.Left() {
		t.Errorf("it has ended: fresh %v, left %v", a.Fresh(), a.Left())
	}
	h.begin(t, a)
	h.settle(t)
}

// A goodbye announces that the node continues to answer: the others count it as alive.
func TestDetectorRetains(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	a, b := h.nodes[0], h.nodes[1]
	h.retain(t, a, 3*time.Second)
	took := b.until(t, "a is gone", func(m view.Members) bool { return !m.Peers["a"].Alive })
	if took < 2500*time.Millisecond {
		t.Errorf("after %v", took)
	}
	if a.Fresh() {
		t.Error("it has ended and is fresh")
	}
}

// retain ends a process whose node continues to answer. After a stall of the machine the goodbye must not announce
// that: another process is started then.
func (h *hub) retain(t *testing.T, n *node, lifetime time.Duration) {
	t.Helper()
	for range 3 {
		n.Retain(lifetime)
		n.stop()
		if err := <-n.ended; err != nil {
			t.Fatal(err)
		}
		n.ended <- nil
		if !n.Left() {
			return
		}
		t.Log("the process stalled, and its goodbye retains nothing")
		h.begin(t, n)
		h.settle(t)
	}
	t.Fatal("three goodbyes retained nothing")
}

// The others probe it: it counts as alive as long as its kernel answers, and as dead within seconds after.
func TestDetectorProbes(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	a, b := h.nodes[0], h.nodes[1]
	h.retain(t, a, time.Minute)
	gone := func(m view.Members) bool { _, on := m.Peers["a"].On["eth0"]; return !on }
	for hold := time.After(8 * time.Second); hold != nil; {
		select {
		case <-hold:
			hold = nil
		case <-b.wakes:
			if m, _, _ := b.Observe(); gone(m) {
				t.Fatal("it does not count any more, and its kernel answers")
			}
		}
	}
	h.free(t, "lan1") // the carrier stays, and on eth1 it answers
	took := b.until(t, "a is gone", gone)
	t.Logf("missed after %v", took)
	if took > 10*time.Second { // of a minute
		t.Errorf("after %v", took)
	}
}

// Claims arrive at once and in full, and are kept by their version.
func TestDetectorPublishes(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	a, b := h.nodes[0], h.nodes[1]
	b.Observe()
	id := view.IDOf("web")
	for _, want := range []view.Claim{
		{State: view.Held, Generation: 1}, {State: view.HandingOver, Generation: 2, Rank: 1, Successor: "b"}, {State: view.Declined, Generation: 3}, {},
	} {
		state := view.LocalState{Claims: map[string]view.Claim{"mail": {State: view.Held}}}
		if want.State != 0 {
			state.Claims["web"] = want
		}
		a.Publish(state)
		var vips map[view.VIPID]struct{}
		deadline := time.After(patience)
		for done := false; !done; {
			m, _, changed := b.Observe()
			if m.Peers["a"].Claims[id] == want {
				vips, done = changed, true
				continue
			}
			select {
			case <-b.wakes:
			case <-deadline:
				t.Fatalf("b has %+v, want %+v", m.Peers["a"].Claims, want)
			}
		}
		if _, reported := vips[id]; !reported {
			t.Errorf("%+v: the change is not reported", want)
		}
	}
	a.Publish(view.LocalState{Leaving: true})
	b.until(t, "a leaves", func(m view.Members) bool { return m.Peers["a"].Leaving && len(m.Peers["a"].Claims) == 0 })
}

// A segment without IPv4.
func TestDetectorIPv6Only(t *testing.T) {
	h := newHub(t)
	for _, name := range []string{"a", "b"} {
		n := &node{name: name, hub: h, space: netspace.New(t)}
		h.nodes = append(h.nodes, n)
	}
	netspace.Join(t, h.nodes[0].space, "eth0", "2001:db8::1/64", h.nodes[1].space, "eth0", "2001:db8::2/64")
	for _, n := range h.nodes {
		h.begin(t, n)
		n.SetPeers(nil)
	}
	h.settle(t)
	if len(h.nodes[0].seen.Peers["b"].On) != 1 {
		t.Errorf("%+v", h.nodes[0].seen)
	}
	h.nodes[1].stop()
	h.nodes[0].until(t, "b is gone", lacks("b"))
}

// An IPv4 address that is retained on a segment without IPv4, and later a subnet: the other node, without IPv4, still
// receives this one itself, not only by relay. A stall of this process is over within a second.
func TestDetectorMixedFamilies(t *testing.T) {
	h := newHub(t)
	for _, name := range []string{"a", "b", "c"} {
		h.nodes = append(h.nodes, &node{name: name, hub: h, space: netspace.New(t)})
	}
	for i, n := range h.nodes {
		digit := string(rune('1' + i))
		netspace.Join(t, h.space, "lan"+digit, "203.0.113."+digit+"/32", n.space, "eth0", "2001:db8::"+digit+"/64")
		h.enslave(t, "lan"+digit, "lan")
		h.begin(t, n)
		n.SetPeers(nil)
	}
	h.settle(t)
	for _, address := range []string{"192.0.2.200/32", "192.0.2.1/24"} {
		for i, n := range h.nodes[:2] {
			link, err := n.space.Handle.LinkByName("eth0")
			if err != nil {
				t.Fatal(err)
			}
			addr, err := netlink.ParseAddr(address)
			if err != nil {
				t.Fatal(err)
			}
			addr.IP[len(addr.IP)-1] += byte(i)
			if err := n.space.Handle.AddrAdd(link, addr); err != nil {
				t.Fatal(err)
			}
			n.SetSegments([]string{"eth0"})
		}
		began := time.Now()
		receives := map[*node]time.Time{}
		for tick := time.NewTicker(20 * time.Millisecond); time.Since(began) < 3*time.Second; <-tick.C {
			for _, n := range h.nodes {
				if n.seen, _, _ = n.Observe(); receives[n].IsZero() || receivesAll(h.others(n)...)(n.seen) {
					receives[n] = time.Now()
				}
				if lost := time.Since(receives[n]); lost > time.Second {
					t.Fatalf("with %s %s has not received all for %v: %+v", address, n.name, lost, n.seen)
				}
			}
		}
		for _, n := range h.nodes {
			if by := n.metric(t, "ironlb_liveness_relayed_total", ""); by >= 2 {
				t.Errorf("with %s %s receives the others by relay alone", address, n.name)
			}
		}
	}
}

// A node that cannot send, but receives, is isolated: the others consider it dead.
func TestDetectorCannotSend(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	a, b := h.nodes[0], h.nodes[1]
	a.space.Must(t, func() error {
		script := "add table inet cut; add chain inet cut out { type filter hook output priority 0; }; " +
			"add rule inet cut out meta l4proto udp drop"
		out, err := exec.Command("nft", script).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	b.until(t, "a is dead", lacks("a"))
	dead := time.Now()
	a.until(t, "isolated", func(m view.Members) bool { _, is := m.Isolated["eth0"]; return is })
	if took := time.Since(dead); took > time.Second {
		t.Errorf("isolated %v after the others found it dead", took)
	}
}

// Another key: not received, and counted.
func TestDetectorOtherKey(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	c := h.nodes[2]
	if err := c.SetKeys([][]byte{bytes.Repeat([]byte("x"), 32)}); err != nil {
		t.Fatal(err)
	}
	h.nodes[0].until(t, "c is dead", lacks("c"))
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(6 * patience) // one of 64 datagrams passes the filter, and one in seven seconds is enough
	for h.nodes[0].log.count("give all speakers the same Secret") == 0 {
		select {
		case <-ticker.C:
			h.nodes[0].Observe()
		case <-deadline:
			t.Fatal("not reported")
		}
	}
	if n := h.nodes[0].metric(t, "ironlb_liveness_dropped_total", "unknown-key"); n == 0 {
		t.Error("nothing was dropped")
	}
	if n := h.nodes[0].metric(t, "ironlb_failover_detection_seconds", ""); n == 0 {
		t.Error("no detection was measured")
	}
	if err := c.SetKeys([][]byte{secret}); err != nil {
		t.Fatal(err)
	}
	h.settle(t)
	if n := h.nodes[0].metric(t, "ironlb_liveness_false_deaths_total", ""); n != 1 {
		t.Errorf("%v false deaths", n)
	}
	h.nodes[0].until(t, "c is known to have returned", func(m view.Members) bool { return m.Returned > 0 })
}

func TestDetectorPortInUse(t *testing.T) {
	h := newHub(t, "a")
	h.settle(t)
	d, err := member.New(member.Options{Node: "b", Keys: [][]byte{secret}, Profile: member.Standard, Log: slog.New(slog.DiscardHandler), Wake: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	err = h.nodes[0].space.Do(func() error { return d.Run(t.Context()) })
	if err == nil || !strings.Contains(err.Error(), "7948") {
		t.Errorf("error %v does not name the port", err)
	}
}

// metric returns a counter's value, or the count of a histogram.
func (n *node) metric(t *testing.T, name, reason string) float64 {
	t.Helper()
	families, err := n.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (reason == "" || m.GetLabel()[0].GetValue() == reason) {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}
