package member_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/plan"
)

var secret = bytes.Repeat([]byte("k"), 32)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// node is a Detector in a namespace of its own, on a LAN and on a node network that are bridges of a third one.
type node struct {
	*member.Detector
	name  string
	space *netspace.Space
	kicks chan struct{}
	stop  context.CancelFunc
	ended chan error
	seen  plan.Members
}

// hub joins nodes by two bridges.
type hub struct {
	space *netspace.Space
	nodes []*node
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
	for i, name := range names {
		n := &node{name: name, space: netspace.New(t)}
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
	return h
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
	n.kicks = make(chan struct{}, 1)
	kicks := n.kicks
	var err error
	n.Detector, err = member.New(member.Options{
		Node: n.name, Cluster: "default", Keys: [][]byte{secret}, Profile: member.Standard, Log: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
		Kick: func() {
			select {
			case kicks <- struct{}{}:
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

// until waits until what the node observes is as wanted, and returns how long that took.
func (n *node) until(t *testing.T, what string, ok func(plan.Members) bool) time.Duration {
	t.Helper()
	start := time.Now()
	deadline := time.After(patience)
	for {
		n.seen, _, _ = n.Observe()
		if ok(n.seen) {
			return time.Since(start)
		}
		select {
		case <-n.kicks:
		case <-deadline:
			t.Fatalf("%s: not yet %s after %v: %+v", n.name, what, patience, n.seen)
		}
	}
}

func hears(names ...string) func(plan.Members) bool {
	return func(m plan.Members) bool {
		for _, name := range names {
			if _, on := m.Peers[name].On["eth0"]; !on {
				return false
			}
		}
		return !m.Observer && len(m.Isolated) == 0
	}
}

func lacks(name string) func(plan.Members) bool {
	return func(m plan.Members) bool {
		_, on := m.Peers[name].On["eth0"]
		return !on
	}
}

// others are the names without one.
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
		n.until(t, "hears "+strings.Join(h.others(n), " "), hears(h.others(n)...))
	}
}

func TestDetectorFindsDeadNode(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	h.up(t, "lan1", false)
	h.up(t, "mgmt1", false)
	took := h.nodes[1].until(t, "a is dead", lacks("a"))
	if took < member.Standard.Dead/2 {
		t.Errorf("dead after %v", took)
	}
	t.Logf("detection after %v", took)
}
