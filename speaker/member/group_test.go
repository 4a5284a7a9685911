package member_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

// bystander is a host on the LAN that has joined no group. Its interfaces are macvlans, which filter multicast like the
// hash filter of a network card; there are several, because two groups may share a hash.
type bystander struct {
	space *netspace.Space
	fds   []int
}

const bystanderPorts = 3

func newBystander(t *testing.T, h *hub) *bystander {
	t.Helper()
	b := &bystander{space: netspace.New(t)}
	netspace.Join(t, h.space, "lan9", "203.0.113.9/32", b.space, "nic", "203.0.113.10/32")
	h.enslave(t, "lan9", "lan")
	parent, err := b.space.Handle.LinkByName("nic")
	if err != nil {
		t.Fatal(err)
	}
	for i := range bystanderPorts {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = fmt.Sprint("host", i), parent.Attrs().Index
		vlan := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_PRIVATE}
		if err := b.space.Handle.LinkAdd(vlan); err != nil {
			t.Fatal(err)
		}
		b.space.Address(t, attrs.Name, fmt.Sprintf("192.0.2.%d/24", 200+i))
		if err := b.space.Handle.LinkSetUp(vlan); err != nil {
			t.Fatal(err)
		}
		b.space.Must(t, func() error {
			const all = 0x0300 // ETH_P_ALL in network order
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
			if err != nil {
				return err
			}
			b.fds = append(b.fds, fd)
			t.Cleanup(func() { unix.Close(fd) })
			return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: vlan.Attrs().Index})
		})
	}
	return b
}

// heartbeats returns how many speakers' datagrams have passed each interface's filter since the last call.
func (b *bystander) heartbeats(t *testing.T) (counts [bystanderPorts]int) {
	t.Helper()
	buffer := make([]byte, 2048)
	for i, fd := range b.fds {
		for {
			n, _, err := unix.Recvfrom(fd, buffer, 0)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			p := buffer[:n]
			if n > 28 && p[0]>>4 == 4 && p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[22:]) == member.DefaultPort ||
				n > 48 && p[0]>>4 == 6 && p[6] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[42:]) == member.DefaultPort {
				counts[i]++
			}
		}
	}
	return counts
}

// A host without a speaker receives no heartbeat; with the broadcast setting it receives all of them.
func TestBystander(t *testing.T) {
	for _, broadcast := range []bool{false, true} {
		t.Run(fmt.Sprintf("broadcast=%t", broadcast), func(t *testing.T) {
			h := newHub(t)
			h.broadcast = broadcast
			h.add(t, "a", "b", "c")
			h.settle(t)
			other := newBystander(t, h)
			a := h.nodes[0]
			received := func() float64 { return a.metric(t, "ironlb_liveness_received_total", "") }
			pass := func(n float64) {
				from := received()
				eventually.True(t, patience, "heartbeats of the speakers", func() bool { return received() >= from+n })
			}
			pass(20) // broadcasts in flight when the last one settled
			broadcasts := func() (n int) {
				for _, m := range h.nodes {
					n += int(m.metric(t, "ironlb_liveness_broadcast_total", ""))
				}
				return n
			}
			sent := broadcasts()
			other.heartbeats(t)
			start := time.Now()
			pass(120)
			counts := other.heartbeats(t)
			took := time.Since(start)
			t.Logf("3 speakers, %v: %v heartbeats passed the filters of a host without membership",
				took.Round(time.Millisecond), counts)
			least := min(counts[0], counts[1], counts[2])
			sent = broadcasts() - sent // none, unless a node stalled on a busy machine
			if !broadcast && least > sent {
				t.Errorf("%d heartbeats in %v at a host that has not joined the group", least, took)
			}
			// a receives 60 of the other two over IPv4. Some of them arrived before the start and were read later.
			if broadcast && least < 40 {
				t.Errorf("%d heartbeats in %v by broadcast: the count is wrong", least, took)
			}
		})
	}
}

// One node's network drops the group, as a switch with faulty snooping does: liveness continues by broadcast, and that
// is logged.
func TestDetectorGroupDropped(t *testing.T) {
	h := newHub(t, "a", "b", "c")
	h.settle(t)
	b := h.nodes[1]
	b.leaveGroups(t)
	b.until(t, "logged", func(view.Members) bool {
		b.SetSegments([]string{"eth0"})
		return b.log.count("by broadcast only") == 1
	})
	for _, n := range h.nodes {
		if deaths := n.metric(t, "ironlb_liveness_false_deaths_total", ""); deaths != 0 {
			t.Errorf("%s: %v false deaths", n.name, deaths)
		}
	}
}

// leaveGroups drops datagrams to the IPv4 and IPv6 groups on arrival at the node.
func (n *node) leaveGroups(t *testing.T) {
	t.Helper()
	n.space.Must(t, func() error {
		script := "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; " +
			"add rule inet cut in ip daddr 224.0.0.254 drop; add rule inet cut in ip6 daddr ff02::114 drop"
		out, err := exec.Command("nft", script).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}

// The network begins to drop the group: answers to nodes that miss a heartbeat keep their sender alive.
func TestGroupDropped(t *testing.T) {
	w := newWorld(t, 5)
	w.settle()
	w.run(time.Minute, nil)
	w.dropGroup = true
	w.run(5*time.Minute, func() bool {
		for _, m := range w.nodes {
			if !m.receives(w.nodes...) {
				t.Fatalf("%v: %s misses a node", w.now.Sub(epoch), m.name)
			}
		}
		return false
	})
	broadcasts := w.nodes[0].Counts().Broadcast
	t.Logf("%d broadcasts in 5 minutes", broadcasts)
}

// A node started with the broadcast setting and one without receive each other.
func TestMixedSettings(t *testing.T) {
	w := newWorld(t, 4)
	w.boot(w.nodes[0], 2, func(c *member.Config) { c.Broadcast = true })
	w.settle()
	w.run(time.Minute, nil)
	for i, m := range w.nodes {
		before := m.Counts().Broadcast
		w.run(10*time.Second, nil)
		if n := m.Counts().Broadcast - before; (n > 0) != (i == 0) {
			t.Errorf("%s: %d broadcasts", m.name, n)
		}
		if !m.receives(w.nodes...) || m.Counts().FalseDeaths > 0 {
			t.Errorf("%s: %v", m.name, m.members.Peers)
		}
	}
}

// A node that starts where the network drops the group, for all nodes or at its own port only, is received because it
// requests relays of the others.
func TestBeginsWithoutGroup(t *testing.T) {
	for _, nodes := range []int{2, 3} {
		w := newWorld(t, nodes)
		w.settle()
		last := w.nodes[nodes-1]
		last.off = true
		w.run(time.Minute, nil)
		if w.dropGroup = nodes == 2; nodes > 2 {
			w.dropGroupAt = last
		}
		w.boot(last, 2)
		w.must(fmt.Sprint("settled, ", nodes, " nodes"), 5*time.Second, w.settled)
		w.watch = func(m *machine) {
			if !m.receives(w.nodes...) || len(m.members.Isolated) > 0 {
				t.Fatalf("%d nodes: %s: %+v", nodes, m.name, m.members)
			}
		}
		w.run(time.Minute, nil)
	}
}

// One node of a segment has IPv4 there, the others do not: its heartbeats by IPv4 do not reach them, and the others
// receive one another, so it would count as dead.
func TestMixedFamilies(t *testing.T) {
	for _, with := range []int{1, 2} {
		w := newWorld(t, 3)
		w.ipv4 = true
		for i, m := range w.nodes {
			m.ipv4 = i < with
			w.boot(m, 2)
		}
		w.settle()
		w.watch = func(m *machine) {
			if !m.receives(w.nodes...) || len(m.members.Isolated) > 0 {
				t.Fatalf("%d with IPv4: %s at %v: %+v", with, m.name, w.now.Sub(epoch), m.members)
			}
		}
		w.run(time.Minute, nil)
		for _, m := range w.nodes {
			if n := m.Counts().RelayRequests; n > 100 {
				t.Errorf("%d with IPv4: %s asked %d times for others", with, m.name, n)
			}
		}
	}
}
