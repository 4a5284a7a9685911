package direct_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/direct"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// each runs a test with each family outside of the tunnels, which IPVS does not see.
func each(t *testing.T, run func(*testing.T, *lab)) {
	outers := families
	if withIPVS {
		outers = families[:1]
	}
	for _, outer := range outers {
		t.Run("over"+outer.name, func(t *testing.T) {
			t.Parallel()
			run(t, newLab(t, outer))
		})
	}
}

// connection is a connection of the client and its Pod.
type connection struct {
	net.Conn
	answer string
}

// open opens n connections per family and protocol and asks who answers.
func (l *lab) open(t *testing.T, n int, networks ...string) (all []connection) {
	t.Helper()
	for _, f := range families {
		for _, network := range networks {
			for range n {
				conn, err := l.client.Dial(network, "", at(f.vip, servicePort))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				answer, err := netspace.AskOn(conn)
				if err != nil {
					t.Fatalf("%s %s: %v", network, f.name, err)
				}
				if pod, from, _ := strings.Cut(answer, " "); !strings.HasPrefix(pod, "pod") || from != f.client {
					t.Errorf("%s %s: answer %q, want a Pod that sees %s", network, f.name, answer, f.client)
				}
				all = append(all, connection{conn, answer})
			}
		}
	}
	return all
}

// shares counts the connections of each Pod.
func shares(all []connection) map[string]int {
	shares := make(map[string]int)
	for _, c := range all {
		pod, _, _ := strings.Cut(c.answer, " ")
		shares[pod]++
	}
	return shares
}

// survive asks on all connections at once; each must be answered by its Pod.
func survive(t *testing.T, all []connection, when string) {
	t.Helper()
	var done sync.WaitGroup
	var mu sync.Mutex
	broken := make(map[string]int)
	for _, c := range all {
		done.Go(func() {
			got, err := netspace.AskOn(c)
			if err == nil && got == c.answer {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			broken[fmt.Sprintf("answer %q instead of %q, error %v", got, c.answer, err)]++
		})
	}
	done.Wait()
	if len(broken) > 0 {
		t.Errorf("%s: of %d connections break: %v", when, len(all), broken)
	}
}

// A request reaches the Pod of the slot's node with the client's address.
func TestNodeOfSlot(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		for node := range uint16(numNodes) {
			l.direct(t, ipvs.Directed{Slots: spreadOver(node)})
			all := l.open(t, 1, "tcp", "udp")
			if got := shares(all); got[podName(int(node))] != len(all) {
				t.Errorf("slots of node %d reach %v", node, got)
			}
		}
	})
}

// Requests are spread over all nodes. Connections survive that the address moves to another owner, twice.
func TestOwnerMoves(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(0, 1, 2)})
		all := l.open(t, fewer(75), "tcp", "udp") // 300
		got := shares(all)
		for i := range numNodes {
			deviation := 4 * math.Sqrt(float64(len(all))*(numNodes-1)) / numNodes // four times the standard one
			if n := got[podName(i)]; math.Abs(float64(n)-float64(len(all))/numNodes) > deviation {
				t.Errorf("%d of %d connections reach Pod %d", n, len(all), i)
			}
		}
		for _, owner := range []int{1, 2, 0} {
			l.own(t, owner)
			survive(t, all, fmt.Sprintf("node %d is owner", owner))
		}
	})
}

// counters counts packets in a namespace: names with their rules, in base chains of these hooks.
func counters(t *testing.T, s *netspace.Space, hook string, rules map[string]string) {
	t.Helper()
	var text strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		fmt.Fprintf(&text, "table %s test-%s {\n", family, hook)
		for _, name := range slices.Sorted(maps.Keys(rules)) {
			fmt.Fprintf(&text, "counter %s { }\n", name)
		}
		fmt.Fprintf(&text, "chain packets { type filter hook %s priority -350;\n", hook)
		for _, name := range slices.Sorted(maps.Keys(rules)) {
			fmt.Fprintf(&text, "%s counter name \"%s\"\n", rules[name], name)
		}
		text.WriteString("}\n}\n")
	}
	s.Must(t, func() error { return netspace.NFT(text.String()) })
}

// counted returns the counts so far, of both families.
func counted(t *testing.T, s *netspace.Space) map[string]int {
	t.Helper()
	var out []byte
	s.Must(t, func() (err error) {
		out, err = exec.Command("nft", "--json", "list", "counters").Output()
		return err
	})
	var listing struct {
		NFTables []struct {
			Counter *struct {
				Name    string
				Packets int
			}
		}
	}
	if err := json.Unmarshal(out, &listing); err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int)
	for _, o := range listing.NFTables {
		if o.Counter != nil {
			counts[o.Counter.Name] += o.Counter.Packets
		}
	}
	return counts
}

// The answer is sent by the Pod's node, not by the owner.
func TestWayBack(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		rules := make(map[string]string)
		for i, node := range l.nodes {
			rules[fmt.Sprintf("node%d", i)] = "th sport 80 ether saddr " + node.MAC(t, "eth0").String()
		}
		counters(t, l.client, "input", rules)
		l.direct(t, ipvs.Directed{Slots: spreadOver(2)})
		l.open(t, 1, "tcp", "udp")
		if got := counted(t, l.client); got["node2"] == 0 || got["node0"]+got["node1"] != 0 {
			t.Errorf("answers come from %v, want only from the Pod's node 2", got)
		}
	})
}

// Connections of TCP survive a change of the slots, also if the owner moves at the same moment, if nodes change one
// after another, and if the change is reverted. New ones follow the new slots.
func TestSecondChance(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		two, three := spreadOver(0, 1), spreadOver(2, 0, 1)
		l.direct(t, ipvs.Directed{Slots: two})
		all := l.open(t, fewer(50), "tcp")
		for i := range l.nodes {
			l.directNode(t, i, ipvs.Directed{Slots: three, Before: two})
			survive(t, all, fmt.Sprintf("node %d has the new slots", i))
		}
		l.own(t, 2)
		survive(t, all, "the owner moves")
		if got := shares(l.open(t, 20, "tcp")); got["pod2"] == 0 {
			t.Errorf("new connections reach %v", got)
		}
		added := l.open(t, fewer(20), "tcp")
		for i := range l.nodes {
			l.directNode(t, i, ipvs.Directed{Slots: two, Before: three})
		}
		l.own(t, 1)
		survive(t, append(all, added...), "the slots are as before, and the owner moves")
	})
}

// The nodes track no packets of the tunnels, and the owner no connections of other nodes.
func TestNotTracked(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(1)})
		l.open(t, 3, "tcp", "udp")
		for i, want := range []int{0, 6, 0} {
			l.nodes[i].Must(t, func() error {
				for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
					flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
					if err != nil {
						return err
					}
					flows = slices.DeleteFunc(flows, func(f *netlink.ConntrackFlow) bool { return f.Forward.Protocol > uint8(ipvs.UDP) })
					if len(flows) != want {
						t.Errorf("node %d tracks %v, want %d", i, flows, want)
					}
				}
				return nil
			})
		}
	})
}

// A packet reaches the Pod with its own flags, whether or not it must not be fragmented, and through a tunnel or not.
func TestFlags(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(0, 1)})
		for i := range 2 {
			counters(t, l.pods[i], "prerouting", map[string]string{
				"df": "udp dport 8080 @nh,48,16 0x4000", "none": "udp dport 8080 @nh,48,16 0",
				"other": "udp dport 8080 @nh,48,2 & 2 != 0",
			})
		}
		for want, option := range map[string]int{"df": unix.IP_PMTUDISC_DO, "none": unix.IP_PMTUDISC_DONT} {
			before := [2]map[string]int{counted(t, l.pods[0]), counted(t, l.pods[1])}
			for range 20 {
				conn, err := l.client.Dial("udp", "", at(ipv4.vip, servicePort))
				if err != nil {
					t.Fatal(err)
				}
				control(t, conn, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, option) })
				if got, err := netspace.AskOn(conn); err != nil {
					t.Errorf("answer %q, error %v", got, err)
				}
				conn.Close()
			}
			for i := range before {
				after := counted(t, l.pods[i])
				for name := range after {
					if n := after[name] - before[i][name]; (n != 0) != (name == want) {
						t.Errorf("Pod %d receives %d packets with %s, sent with %s", i, n, name, want)
					}
				}
			}
		}
	})
}

// All connections of a client reach one node with ByClient.
func TestByClient(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(0, 1, 2), ByClient: true})
		for _, f := range families {
			pods := make(map[string]bool)
			for range 20 {
				got, err := l.ask("tcp", f)
				if err != nil {
					t.Fatal(err)
				}
				pods[got] = true
			}
			if len(pods) != 1 {
				t.Errorf("%s: one client reaches %v", f.name, pods)
			}
		}
	})
}

// onTunnels counts what nodes send into the tunnels.
func (l *lab) onTunnels(t *testing.T) (first, second int) {
	t.Helper()
	for _, node := range l.nodes {
		for name, count := range map[string]*int{direct.Device1: &first, direct.Device2: &second} {
			link, err := node.Handle.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			*count += int(link.Attrs().Statistics.TxPackets)
		}
	}
	return first, second
}

// With different slots on each node, a packet passes at most one tunnel of each kind, and a connection works.
func TestTablesDisagree(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		for i := range uint16(numNodes) {
			next, afterNext := (i+1)%numNodes, (i+2)%numNodes
			l.directNode(t, int(i), ipvs.Directed{Slots: spreadOver(next), Before: spreadOver(afterNext)})
		}
		if got := shares(l.open(t, 1, "tcp", "udp")); got["pod1"] != 4 {
			t.Errorf("node 0 sends to node 1; the connections reach %v", got)
		}
		l.wantTwoTunnels(t, "each node has another slot's node")
		l.directNode(t, 2, ipvs.Directed{Slots: spreadOver(2), Before: spreadOver(0)})
		l.wantTwoTunnels(t, "the last node would send to the first")
	})
}

// wantTwoTunnels sends segments of connections that no node has: to node 1, from there to node 2. The Pod there resets
// them, or with IPVS the kernel.
func (l *lab) wantTwoTunnels(t *testing.T, what string) {
	t.Helper()
	lost := []net.Conn{l.lost(t, ipv4), l.lost(t, ipv6)}
	first, second := l.onTunnels(t)
	for _, conn := range lost {
		if got, err := netspace.AskOn(conn); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: answer %q, error %v on a connection that no node has", what, got, err)
		}
	}
	again1, again2 := l.onTunnels(t)
	if again1-first != len(lost) || again2-second != len(lost) {
		t.Errorf("%s: %d packets cross %d first and %d second tunnels, want one of each", what, len(lost), again1-first, again2-second)
	}
}

// lost returns a connection of the client that no node has in conntrack.
func (l *lab) lost(t *testing.T, f family) net.Conn {
	t.Helper()
	conn, err := l.client.Dial("tcp", "", at(f.vip, servicePort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	for _, node := range l.nodes {
		node.Must(t, flushConntrack)
	}
	return conn
}

// Clients on a node and in its Pod reach the cluster-internal endpoints as without direct forwarding.
func TestInternalClients(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		var pods ipvs.PodSources
		for _, f := range families {
			prefix, err := netip.MustParseAddr(f.pod(0)).Prefix(f.podBits)
			if err != nil {
				t.Fatal(err)
			}
			pods.Prefixes = append(pods.Prefixes, prefix)
		}
		l.nodes[0].Must(t, func() error { return l.internal(t, 0, pods) })
		l.direct(t, ipvs.Directed{Slots: spreadOver(1)})
		for _, f := range families {
			for i := 1; i < numNodes; i++ { // the CNI's routes
				l.nodes[0].Route(t, network(f.pod(i), f.podBits), f.node(i))
				l.nodes[i].Route(t, network(f.pod(0), f.podBits), f.node(0))
			}
			for _, c := range []struct {
				space *netspace.Space
				from  string
			}{{l.pods[0], f.pod(0)}, {l.nodes[0], f.node(0)}} {
				for _, network := range []string{"tcp", "udp"} {
					conn, err := c.space.Dial(network, c.from, at(f.vip, servicePort))
					if err != nil {
						t.Errorf("%s from %s: %v", network, c.from, err)
						continue
					}
					again(t, conn, "pod2 "+c.from, network)
					conn.Close()
				}
			}
		}
		if first, second := l.onTunnels(t); first+second != 0 {
			t.Errorf("%d packets in the tunnels", first+second)
		}
		l.open(t, 1, "tcp", "udp")
	})
}

// internal makes a node serve internal clients by the Pod of node 2.
func (l *lab) internal(t *testing.T, i int, pods ipvs.PodSources) error {
	balancer, err := nftlb.New(nftlb.ClusterInternal)
	if err != nil {
		return err
	}
	t.Cleanup(balancer.Close)
	if err := balancer.SetPods(pods); err != nil {
		return err
	}
	table := make(ipvs.Table)
	for _, key := range keys() {
		pod := netip.MustParseAddrPort(podAt(2)(familyOf(key.Addr)))
		table[key] = ipvs.VirtualServer{
			Settings:    ipvs.Settings{Scheduler: ipvs.RoundRobin},
			RealServers: map[netip.AddrPort]ipvs.RealServer{pod: {Weight: 1}},
		}
	}
	if _, err := balancer.Apply(ipvs.Diff(nil, table)); err != nil {
		return err
	}
	return l.drivers[i].SetPods(pods)
}

func network(addr string, bits int) string {
	return netip.PrefixFrom(netip.MustParseAddr(addr), bits).Masked().String()
}

// A reverse path filter for all interfaces does not drop what comes out of a tunnel.
func TestReversePathFilter(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		for _, node := range l.nodes {
			node.Sysctl(t, "net.ipv4.conf.all.rp_filter", "1")
		}
		l.direct(t, ipvs.Directed{Slots: spreadOver(1, 2)})
		l.open(t, 5, "tcp", "udp")
	})
}

// Removed leaves nothing on the node.
func TestRemove(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		node := l.nodes[0]
		node.Must(t, func() error { return l.drivers[0].Remove(context.Background()) })
		before := ruleset(t, node)
		l.directNode(t, 0, ipvs.Directed{Slots: spreadOver(1)})
		node.Must(t, func() error { return l.drivers[0].Remove(context.Background()) })
		if after := ruleset(t, node); after != before {
			t.Errorf("left in nftables:\n%s", after)
		}
		for _, name := range []string{direct.Device1, direct.Device2} {
			if _, err := node.Handle.LinkByName(name); err == nil {
				t.Errorf("interface %s is left", name)
			}
		}
		l.direct(t, ipvs.Directed{Slots: spreadOver(1)})
		l.open(t, 1, "tcp", "udp")
	})
}

// The guard drops what comes through a tunnel; the first Apply of a process deletes it.
func TestGuard(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(1)})
		node, self := l.nodes[1], l.addresses()[1]
		node.Must(t, func() error { return l.drivers[1].Guard(self) })
		conn, err := l.client.DialWithin(300*time.Millisecond, "tcp", "", at(ipv4.vip, servicePort))
		if err == nil {
			conn.Close()
			t.Error("connected through the guard")
		}
		node.Must(t, func() error {
			d, err := direct.New(direct.Config{Port: tunnelPort})
			if err != nil {
				return err
			}
			t.Cleanup(d.Close)
			return d.Apply(context.Background(), l.want[1], nil)
		})
		l.open(t, 1, "tcp")
		if tables := ruleset(t, node); strings.Contains(tables, "guard") {
			t.Errorf("left: %s", tables)
		}
	})
}

// A closed virtual server takes nothing from tunnels. Its packets that do not come through one are directed.
func TestClosed(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		open := ipvs.Directed{Slots: spreadOver(1)}
		closed := open
		closed.Closed = true
		l.direct(t, open)
		l.directNode(t, 1, closed)
		for _, f := range families {
			conn, err := l.client.DialWithin(300*time.Millisecond, "tcp", "", at(f.vip, servicePort))
			if err == nil {
				conn.Close()
			}
			var timeout net.Error
			if !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("%s: error %v, want no answer", f.vip, err)
			}
		}
		l.directNode(t, 1, open)
		l.directNode(t, 0, closed)
		l.open(t, 1, "tcp", "udp")
	})
}

func ruleset(t *testing.T, s *netspace.Space) (text string) {
	t.Helper()
	s.Must(t, func() error {
		out, err := exec.Command("nft", "list", "tables").Output()
		text = string(out)
		return err
	})
	return text
}
