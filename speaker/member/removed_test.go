package member

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// sender returns the heartbeats of a node that has the cluster's key.
func sender(t *testing.T, name string, incarnation uint64) (heartbeat func() []byte) {
	t.Helper()
	c, err := NewCore(Config{
		Node: name, Cluster: "default", Incarnation: incarnation, Keys: [][]byte{floodKey}, Profile: Slow,
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() []byte { return slices.Clone(c.finish(c.appendHello(c.begin(), 0))) }
}

// Datagrams with the key and the names of no Node fill no table. Nodes stay, silent ones as well, and their old datagrams
// stay old; those of a deleted Node, sent again, are no sign of life.
func TestNamesOfNoNode(t *testing.T) {
	const atOnce, others = 256, 512
	start := time.Unix(1e9, 0)
	now := start
	c, err := NewCore(Config{Node: "a", Cluster: "default", Keys: [][]byte{floodKey}, Profile: Slow})
	if err != nil {
		t.Fatal(err)
	}
	tick := func() { c.Tick(now, now.Sub(start)) }
	receive := func(datagram []byte) Drop {
		return c.Receive(now, now.Sub(start), Packet{
			Iface: "eth0", Source: netip.MustParseAddr("192.0.2.9"), OnLink: true, Group: true, Data: datagram,
		})
	}
	nodes := map[string][]netip.Addr{
		"live": {netip.MustParseAddr("192.0.2.2")}, "off": {netip.MustParseAddr("192.0.2.3")},
	}
	c.SetPeers(nodes)
	tick()

	// Nodes have the lowest incarnations, and the Node that is deleted the highest.
	live, old := sender(t, "live", 1), map[string][]byte{"off": sender(t, "off", 1)()}
	old["live"], old["deleted"] = live(), sender(t, "deleted", 1e6)()
	for name, datagram := range old {
		if why := receive(datagram); why != Accepted {
			t.Fatalf("%s: %s", name, why)
		}
	}
	c.peers["live"].unproved = false // it has answered the challenge
	for from := 0; from < others; from += atOnce {
		for i := from; i < from+atOnce; i++ {
			if why := receive(sender(t, fmt.Sprintf("other-%d", i), uint64(10+i))()); why != Accepted {
				t.Fatalf("node %d: %s", i, why)
			}
		}
		for since := now; now.Sub(since) <= expireAfter+Slow.Dead; {
			now = now.Add(Slow.Interval)
			if why := receive(live()); why != Accepted {
				t.Fatalf("after %v: %s", now.Sub(start), why)
			}
			tick()
		}
		c.SetPeers(nodes)
	}

	if len(c.peers) != len(nodes) || len(c.byID) != len(nodes) || len(c.order) != len(nodes) {
		t.Errorf("%d, %d and %d nodes", len(c.peers), len(c.byID), len(c.order))
	}
	members, _, _ := c.Members()
	if !members.Peers["live"].Alive || c.Counts().FalseDeaths > 0 {
		t.Errorf("live is %+v, %+v", members.Peers["live"], c.Counts())
	}
	for name, datagram := range old {
		if why := receive(datagram); why != DropOld && why != DropRepeat && name != "deleted" {
			t.Errorf("an old datagram of %s is received: %q", name, why)
		}
	}
	tick()
	members, _, _ = c.Members()
	if _, is := members.Peers["deleted"]; is || len(c.peers) != len(nodes)+1 {
		t.Errorf("%d nodes, members %+v", len(c.peers), members.Peers)
	}
}

// A deleted Node leaves once its speaker is silent for long, also if no other Node changes.
func TestDeletedNodeLeaves(t *testing.T) {
	start := time.Unix(1e9, 0)
	now := start
	c, err := NewCore(Config{Node: "a", Cluster: "default", Keys: [][]byte{floodKey}, Profile: Slow})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string][]netip.Addr{}
	for i := range 300 {
		nodes[fmt.Sprint("off", i)] = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 3, byte(i)})}
	}
	nodes["b"] = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	c.SetPeers(nodes)
	c.Tick(now, 0)
	stretched := c.profile.Interval
	heartbeat := sender(t, "b", 1)
	for range 2 {
		why := c.Receive(now, 0, Packet{Iface: "eth0", Source: nodes["b"][0], OnLink: true, Group: true, Data: heartbeat()})
		if why != Accepted {
			t.Fatal(why)
		}
		c.peers["b"].unproved = false // it has answered the challenge
	}
	c.SetPeers(map[string][]netip.Addr{})
	if m, _, _ := c.Members(); !m.Peers["b"].Alive {
		t.Fatalf("members %+v, want b, whose speaker is alive", m.Peers)
	}
	for now.Sub(start) < 2*expireAfter {
		now = now.Add(Slow.Interval)
		c.Tick(now, now.Sub(start))
	}
	m, changed, _ := c.Members()
	if _, is := changed["b"]; len(c.peers)+len(c.byID)+len(c.order)+len(m.Peers) > 0 || !is {
		t.Errorf("%d peers, %d by ID, %d in order, %d members, changed %v; want none, and b changed", len(c.peers), len(c.byID), len(c.order), len(m.Peers), changed)
	}
	if c.profile.Interval >= stretched {
		t.Errorf("interval %v, before %v", c.profile.Interval, stretched)
	}
}
