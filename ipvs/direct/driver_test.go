package direct_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/direct"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// node is one node without others.
type node struct {
	*netspace.Space
	driver *direct.Driver
	want   ipvs.Direct
}

// newNode returns a node with peers of IPv4.
func newNode(t testing.TB, peers int) *node {
	t.Helper()
	n := &node{Space: netspace.New(t), want: ipvs.Direct{
		Self: netip.MustParseAddr("10.0.0.0"), Virtuals: make(map[ipvs.Key]ipvs.Directed),
	}}
	addr := n.want.Self
	for range peers + 1 {
		n.want.Nodes = append(n.want.Nodes, addr)
		addr = addr.Next()
	}
	n.restart(t)
	return n
}

// restart replaces the driver by a new one.
func (n *node) restart(t testing.TB) {
	t.Helper()
	n.Must(t, func() (err error) {
		n.driver, err = direct.New(direct.Config{Port: tunnelPort})
		return err
	})
	t.Cleanup(n.driver.Close)
}

func (n *node) apply(t testing.TB, changed ...ipvs.Key) {
	t.Helper()
	n.Must(t, func() error { return n.driver.Apply(context.Background(), n.want, changed) })
}

func (n *node) check(t testing.TB) (intact bool) {
	t.Helper()
	n.Must(t, func() (err error) {
		intact, err = n.driver.Check(context.Background())
		return err
	})
	return intact
}

func (n *node) keys() []ipvs.Key {
	return slices.SortedFunc(maps.Keys(n.want.Virtuals), ipvs.Key.Compare)
}

// wantPeers compares the kernel's content with the wanted state.
func (n *node) wantPeers(t testing.TB) (spreads int) {
	t.Helper()
	var got map[ipvs.Key]direct.Peers
	n.Must(t, func() (err error) {
		got, spreads, err = direct.Listed(context.Background())
		return err
	})
	for key, d := range n.want.Virtuals {
		var want direct.Peers
		for slot, node := range d.Slots {
			want[0][slot], want[1][slot] = direct.None, direct.None
			switch {
			case node != 0:
				want[0][slot] = node
			case d.Before != nil && d.Before[slot] != 0:
				want[1][slot] = d.Before[slot]
			}
		}
		if got[key] != want {
			t.Errorf("%v has not the peers of its slots", key)
		}
	}
	if len(got) != len(n.want.Virtuals) {
		t.Errorf("%d virtual servers are directed, want %d", len(got), len(n.want.Virtuals))
	}
	return spreads
}

func virtual(i int) ipvs.Key {
	addr := netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
	if i%2 == 1 {
		addr = netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 14: byte(i >> 8), 15: byte(i)})
	}
	return ipvs.Key{Addr: addr, Protocol: ipvs.TCP, Port: servicePort}
}

// Random changes, restarts, and a failed transaction lead to the wanted state, and virtual servers with equal slots
// share them.
func TestChanges(t *testing.T) {
	n := newNode(t, 4)
	random := rand.New(rand.NewPCG(1, 2))
	slots := make([]*ipvs.Slots, 5)
	for i := range slots {
		slots[i] = spreadOver(0, uint16(i), uint16(random.IntN(5)))
	}
	for step := range 30 {
		var changed []ipvs.Key
		for range 1 + random.IntN(6) {
			key := virtual(random.IntN(12))
			d := ipvs.Directed{Slots: slots[random.IntN(5)], Before: slots[random.IntN(5)], ByClient: random.IntN(4) == 0}
			if random.IntN(3) == 0 {
				delete(n.want.Virtuals, key)
			} else {
				n.want.Virtuals[key] = d
			}
			changed = append(changed, key)
		}
		switch step % 15 {
		case 9:
			n.driver.FailOnce()
			if err := n.Do(func() error { return n.driver.Apply(context.Background(), n.want, changed) }); err == nil {
				t.Fatal("no error")
			}
			changed = nil
		case 14:
			n.restart(t)
		}
		n.apply(t, changed...)
		n.wantPeers(t)
		if !n.check(t) {
			t.Fatal("not intact after Apply")
		}
	}
	for _, key := range n.keys() {
		n.want.Virtuals[key] = ipvs.Directed{Slots: slots[1]}
	}
	n.apply(t, n.keys()...)
	if spreads := n.wantPeers(t); spreads != 2 {
		t.Errorf("%d spreads for one Slots in two families, want 2", spreads)
	}
}

// A change of the slots writes only those that differ, also if several ports share them. A new process writes nothing
// that exists.
func TestWritesDifferences(t *testing.T) {
	n := newNode(t, 2)
	before := spreadOver(0, 1, 2)
	for i := range 3 {
		n.want.Virtuals[virtual(2*i)] = ipvs.Directed{Slots: before}
	}
	n.apply(t)
	elements := n.driver.CountElements()
	after := *before
	after[1], after[2] = 2, 0
	for _, key := range n.keys() {
		n.want.Virtuals[key] = ipvs.Directed{Slots: &after, Before: before}
	}
	n.apply(t, n.keys()...)
	n.wantPeers(t)
	// Slot 1 is replaced, slot 2 is deleted, and for the latter there is a second spread with three users.
	if *elements != 2+1+1+3 {
		t.Errorf("wrote %d elements", *elements)
	}
	n.restart(t)
	elements = n.driver.CountElements()
	n.apply(t)
	n.wantPeers(t)
	if *elements != 0 || !n.check(t) {
		t.Errorf("a new process wrote %d elements", *elements)
	}
	closed := n.want.Virtuals[virtual(0)]
	closed.Closed = true
	for _, c := range []ipvs.Directed{closed, n.want.Virtuals[virtual(0)]} {
		*elements = 0
		n.want.Virtuals[virtual(0)] = c
		n.apply(t, virtual(0))
		n.wantPeers(t)
		if *elements != 1 {
			t.Errorf("wrote %d elements for closed = %v", *elements, c.Closed)
		}
	}
	n.restart(t)
	elements = n.driver.CountElements()
	after[1] = 1
	n.apply(t)
	n.wantPeers(t)
	if *elements != 2 {
		t.Errorf("a new process wrote %d elements for one slot", *elements)
	}
}

// Harm by another program is found by Check and repaired by the next Apply.
func TestRepair(t *testing.T) {
	n := newNode(t, 2)
	n.want.Virtuals[virtual(0)] = ipvs.Directed{Slots: spreadOver(0, 1, 2)}
	n.want.Virtuals[virtual(1)] = ipvs.Directed{Slots: spreadOver(0, 1, 2), Before: spreadOver(1)}
	n.apply(t)
	rules := n.list(t)
	nft := func(script string) func() error { return func() error { return netspace.NFT(script) } }
	device := func(do func(netlink.Link) error) func() error {
		return func() error {
			link, err := n.Handle.LinkByName(direct.Device2)
			if err != nil {
				return err
			}
			return do(link)
		}
	}
	for name, harm := range map[string]func() error{
		"ruleset flushed":   nft("flush ruleset"),
		"table deleted":     nft("delete table ip6 ironlb-direct"),
		"rules flushed":     nft("flush chain ip ironlb-direct prerouting"),
		"rule added":        nft("add rule ip ironlb-direct first-1 accept"),
		"chain added":       nft("add chain ip ironlb-direct other { type filter hook input priority 0; policy drop; }"),
		"set added":         nft("add set ip ironlb-direct other { type ipv4_addr; }"),
		"element deleted":   nft("delete element ip ironlb-direct directed { 203.0.0.0 . 6 . 80 }"),
		"closed":            nft("add element ip ironlb-direct closed { 203.0.0.0 . 6 . 80 }"),
		"slot deleted":      nft("delete element ip ironlb-direct first-1 { 1 }"),
		"slot of a foreign": nft("add element ip ironlb-direct first-1 { 0 : 192.0.2.1 }"),
		"errors flushed":    nft("flush map ip6 ironlb-direct errors"),
		"node deleted":      nft("flush set ip ironlb-direct nodes"),
		"device deleted":    device(n.Handle.LinkDel),
		"device down":       device(n.Handle.LinkSetDown),
		"ARP":               device(n.Handle.LinkSetARPOn),
		"MTU":               device(func(l netlink.Link) error { return n.Handle.LinkSetMTU(l, 1400) }),
		"hardware address": device(func(l netlink.Link) error {
			return n.Handle.LinkSetHardwareAddr(l, net.HardwareAddr{2, 1, 1, 1, 1, 1})
		}),
		"neighbor deleted": device(func(l netlink.Link) error {
			return n.Handle.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.IPv4(169, 254, 65, 1)})
		}),
		"neighbor changed": device(func(l netlink.Link) error {
			return n.Handle.NeighSet(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, IP: net.IPv4(169, 254, 65, 1), State: unix.NUD_PERMANENT,
				HardwareAddr: net.HardwareAddr{2, 1, 1, 1, 1, 1},
			})
		}),
		"forwarding entry added": device(func(l netlink.Link) error {
			return n.Handle.NeighAppend(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF, State: unix.NUD_PERMANENT,
				IP: net.IPv4(10, 0, 0, 9), HardwareAddr: net.HardwareAddr{2, 1, 1, 1, 1, 1},
			})
		}),
		"address deleted": device(func(l netlink.Link) error {
			return n.Handle.AddrDel(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(169, 254, 64, 2), Mask: net.CIDRMask(18, 32)}})
		}),
	} {
		if !n.check(t) {
			t.Fatalf("not intact before: %s", name)
		}
		n.Must(t, harm)
		if n.check(t) {
			t.Errorf("%s: still intact", name)
		}
		n.apply(t)
		n.wantPeers(t)
		if got := difference(rules, n.list(t)); got != "" || !n.check(t) {
			t.Errorf("%s: not repaired: %s", name, got)
		}
	}
	n.Sysctl(t, "net.ipv4.conf.ironlb-t1.rp_filter", "0")
	if n.check(t) {
		t.Error("sysctl: still intact")
	}
	n.apply(t)
	if !n.check(t) {
		t.Error("sysctl: not repaired")
	}
}

// list returns the tables, the devices and their entries.
func (n *node) list(t testing.TB) (text string) {
	t.Helper()
	n.Must(t, func() error {
		for _, command := range []string{
			"nft list tables", "nft list table ip ironlb-direct", "nft list table ip6 ironlb-direct",
			"ip -br link", "ip neigh show nud permanent", "bridge fdb", "ip route show table all",
		} {
			out, err := run(command)
			if err != nil {
				return err
			}
			text += out
		}
		return nil
	})
	return text
}

// Nodes join, leave, and change their addresses.
func TestNodesChange(t *testing.T) {
	n := newNode(t, 3)
	n.want.Virtuals[virtual(0)] = ipvs.Directed{Slots: spreadOver(0, 1)}
	n.want.Virtuals[virtual(1)] = ipvs.Directed{Slots: spreadOver(0, 1)}
	n.apply(t)
	for _, nodes := range [][]netip.Addr{
		append(slices.Clone(n.want.Nodes), netip.MustParseAddr("10.0.0.77")),
		append(slices.Clone(n.want.Nodes[:2]), netip.Addr{}, netip.MustParseAddr("10.0.0.88")),
		n.want.Nodes[:2],
		n.want.Nodes,
	} {
		n.want.Nodes = nodes
		n.apply(t)
		if !n.check(t) {
			t.Fatal("not intact")
		}
		incremental := n.list(t)
		n.Must(t, func() error { return n.driver.Remove(context.Background()) })
		n.apply(t)
		fresh := n.list(t)
		if got := difference(fresh, incremental); got != "" {
			t.Errorf("%v differs from one from nothing: %s", nodes, got)
		}
	}
}

// What the node lacks is a Problem with its reason, of a probe and of Apply. Once it is there, the driver succeeds.
func TestProblems(t *testing.T) {
	for name, c := range map[string]struct {
		harm   func(*testing.T, *node) (undo func())
		reason direct.Reason
	}{
		"port of a socket": {func(t *testing.T, n *node) func() {
			var conn *net.UDPConn
			n.Must(t, func() (err error) {
				conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: tunnelPort})
				return err
			})
			return func() { conn.Close() }
		}, direct.PortTaken},
		"port and number of another tunnel": {func(t *testing.T, n *node) func() {
			return n.link(t, &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "other"}, VxlanId: 2, Port: tunnelPort})
		}, direct.PortTaken},
		"name": {func(t *testing.T, n *node) func() {
			return n.link(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: direct.Device1}})
		}, direct.NameTaken},
		"name of the second": {func(t *testing.T, n *node) func() {
			return n.link(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: direct.Device2}})
		}, direct.NameTaken},
		"families": {func(_ *testing.T, n *node) func() {
			before := n.want.Nodes[1]
			n.want.Nodes[1] = netip.MustParseAddr("2001:db8::1")
			return func() { n.want.Nodes[1] = before }
		}, direct.MixedFamilies},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1)
			undo := c.harm(t, n)
			n.want.Virtuals[virtual(0)] = ipvs.Directed{Slots: spreadOver(0, 1)}
			wantProblem := func(what string, err error) {
				t.Helper()
				var problem *direct.Problem
				if !errors.As(err, &problem) || problem.Reason != c.reason || !errors.Is(err, ipvs.ErrNoTunnel) {
					t.Errorf("%s: error %v, want reason %s", what, err, c.reason)
				}
			}
			wantProblem("probe", n.probe())
			wantProblem("apply", n.Do(func() error { return n.driver.Apply(context.Background(), n.want, nil) }))
			virtuals := n.want.Virtuals
			n.want.Virtuals = nil // what Apply left is removed
			n.apply(t)
			wantProblem("probe after apply", n.probe())
			undo()
			if err := n.probe(); err != nil {
				t.Errorf("probe: %v", err)
			}
			n.want.Virtuals = virtuals
			n.apply(t)
			if !n.check(t) {
				t.Error("not intact")
			}
		})
	}
}

func (n *node) probe() error {
	return n.Do(func() error { return n.driver.Probe(context.Background(), n.want) })
}

// Probe finds what the node lacks, and leaves nothing.
func TestProbe(t *testing.T) {
	n := newNode(t, 1)
	links := func() string {
		out := ""
		n.Must(t, func() (err error) {
			out, err = run("ip -br link")
			return err
		})
		return out + ruleset(t, n.Space)
	}
	before := links()
	for _, nodes := range []ipvs.Direct{{}, n.want} {
		if err := n.Do(func() error { return n.driver.Probe(context.Background(), nodes) }); err != nil || links() != before {
			t.Errorf("error %v, left %s", err, difference(before, links()))
		}
	}
	n.want.Virtuals[virtual(0)] = ipvs.Directed{Slots: spreadOver(0, 1)}
	n.apply(t)
	if err := n.probe(); err != nil || !n.check(t) {
		t.Errorf("with tunnels: error %v", err)
	}
	n.want.Virtuals = nil
	n.apply(t)
	n.ServeUDP(t, fmt.Sprintf("0.0.0.0:%d", tunnelPort), "other")
	var problem *direct.Problem
	if err := n.probe(); !errors.As(err, &problem) || problem.Reason != direct.PortTaken || links() != before {
		t.Errorf("error %v, left %s", err, difference(before, links()))
	}
}

// link adds an interface, and returns what deletes it.
func (n *node) link(t *testing.T, link netlink.Link) (remove func()) {
	t.Helper()
	if err := n.Handle.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := n.Handle.LinkDel(link); err != nil {
			t.Fatal(err)
		}
	}
}

// The first Apply of a process deletes the guards that an earlier one left, whatever is directed.
func TestGuardOfEarlierProcess(t *testing.T) {
	for _, virtuals := range []map[ipvs.Key]ipvs.Directed{nil, {virtual(0): {Slots: spreadOver(0, 1)}}} {
		n := newNode(t, 1)
		for _, self := range []netip.Addr{n.want.Self, netip.IPv6Loopback()} {
			n.Must(t, func() error { return n.driver.Guard(self) })
		}
		n.restart(t)
		n.want.Virtuals = virtuals
		n.apply(t)
		if tables := ruleset(t, n.Space); strings.Contains(tables, "guard") {
			t.Errorf("with %d virtual servers a guard is left: %s", len(virtuals), tables)
		}
	}
}

// Packets of the tunnels are accepted from the nodes, also if virtual servers of the other family alone are directed.
func TestNodesOfOtherFamily(t *testing.T) {
	n := newNode(t, 1)
	n.want.Virtuals[virtual(1)] = ipvs.Directed{Slots: spreadOver(0, 1)}
	n.apply(t)
	if tables := n.list(t); !strings.Contains(tables, "elements = { "+n.want.Nodes[1].String()+" }") {
		t.Errorf("the tunnels accept nothing from %v: %s", n.want.Nodes[1], tables)
	}
}

// An invalid virtual server is reported and left out; the others are directed.
func TestInvalidSlots(t *testing.T) {
	n := newNode(t, 1)
	n.want.Virtuals[virtual(0)] = ipvs.Directed{Slots: spreadOver(0, 7)}
	n.want.Virtuals[virtual(1)] = ipvs.Directed{Slots: spreadOver(0, 1)}
	err := n.Do(func() error { return n.driver.Apply(context.Background(), n.want, nil) })
	if !errors.Is(err, ipvs.ErrInvalid) {
		t.Errorf("error %v", err)
	}
	delete(n.want.Virtuals, virtual(0))
	n.wantPeers(t)
	n.apply(t, virtual(0))
}
