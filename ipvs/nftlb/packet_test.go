package nftlb_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/ipvs/nftlb"
	"github.com/ironlb/ironlb/test/eventually"
)

// lab is a client with two addresses, a node and two Pods, whose route is through the node.
type lab struct {
	addresses
	client, node *netspace.Space
	pods         [2]*netspace.Space
	driver
}

// addresses are the addresses of a family: of the virtual server, of the client, of the Pods.
type addresses struct {
	vip, client1, client2 string
	pod                   [2]string
}

var (
	ipv4 = addresses{"203.0.113.4", "192.0.2.2", "192.0.2.3", [2]string{"198.51.100.2", "198.51.100.66"}}
	ipv6 = addresses{"2001:db8:4::4", "2001:db8:1::2", "2001:db8:1::3", [2]string{"2001:db8:20::2", "2001:db8:21::2"}}
)

// each runs a test in both families.
func each(t *testing.T, scope nftlb.Scope, run func(*testing.T, *lab)) {
	for name, a := range map[string]addresses{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, newLab(t, a, scope))
		})
	}
}

func newLab(t *testing.T, a addresses, scope nftlb.Scope) *lab {
	t.Helper()
	l := &lab{addresses: a, client: netspace.New(t), node: netspace.New(t)}
	netspace.Join(t, l.client, "eth0", on(a.client1), l.node, "eth0", on(first(a.client1)))
	l.client.Address(t, "eth0", on(a.client2))
	everywhere := map[bool]string{true: "0.0.0.0/0", false: "::/0"}[a == ipv4]
	l.client.Route(t, everywhere, first(a.client1))
	l.node.Sysctl(t, map[bool]string{true: "net.ipv4.ip_forward", false: "net.ipv6.conf.all.forwarding"}[a == ipv4], "1")
	for i, addr := range a.pod {
		l.pods[i] = netspace.New(t)
		netspace.Join(t, l.pods[i], "eth0", on(addr), l.node, fmt.Sprintf("pod%d", i), on(first(addr)))
		l.pods[i].Route(t, everywhere, first(addr))
		for _, port := range []string{"8080", "8081"} {
			l.pods[i].ServeTCP(t, net.JoinHostPort(addr, port), fmt.Sprintf("pod%d", i))
			l.pods[i].ServeUDP(t, net.JoinHostPort(addr, port), fmt.Sprintf("pod%d", i))
		}
	}
	l.node.Local(t, a.vip)
	l.node.ServeTCP(t, map[bool]string{true: "0.0.0.0:80", false: "[::]:80"}[a == ipv4], "node")
	l.node.Must(t, func() error { return filter(l, nil) })
	l.driver = open(t, l.node, scope)
	return l
}

// on returns the address with the prefix length of its network.
func on(addr string) string { return fmt.Sprintf("%s/%d", addr, prefix(addr).Bits()) }

// first returns the node's address on the same link.
func first(addr string) string { return netip.MustParseAddr(addr).Prev().String() }

// filter adds the virtual address to the packet filter, so that the node's own clients are masqueraded, and those sets.
func filter(l *lab, sets []ipvs.Set) error {
	f, err := nft.New()
	if err != nil {
		return err
	}
	defer f.Close()
	elements := ipvs.Filter{
		{Set: ipvs.Addresses, Key: ipvs.Key{Addr: netip.MustParseAddr(l.vip)}}: {},
		{Set: ipvs.Served, Key: l.key(ipvs.TCP)}:                               {},
		{Set: ipvs.Served, Key: l.key(ipvs.UDP)}:                               {},
	}
	for _, set := range sets {
		elements[ipvs.Element{Set: set, Key: l.key(ipvs.TCP)}] = struct{}{}
	}
	_, err = f.Build(context.Background(), elements)
	return err
}

func (l *lab) key(protocol ipvs.Protocol) ipvs.Key {
	return ipvs.Key{Addr: netip.MustParseAddr(l.vip), Protocol: protocol, Port: 80}
}

// prefix returns the network of a Pod's or a client's link.
func prefix(addr string) netip.Prefix {
	return netip.PrefixFrom(netip.MustParseAddr(addr), netip.MustParseAddr(addr).BitLen()-6).Masked()
}

// have applies one virtual server of each protocol to the node, with these weights of the Pods.
func (l *lab) have(t *testing.T, settings ipvs.Settings, weights ...uint32) {
	t.Helper()
	vs := ipvs.VirtualServer{Settings: settings, RealServers: make(map[netip.AddrPort]ipvs.RealServer)}
	for i, weight := range weights {
		addr := netip.AddrPortFrom(netip.MustParseAddr(l.pod[i%2]), uint16(8080+i/2))
		vs.RealServers[addr] = ipvs.RealServer{Weight: weight}
	}
	have, err := l.List()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(ipvs.Diff(have, ipvs.Table{l.key(ipvs.TCP): vs, l.key(ipvs.UDP): vs})); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) at() string { return net.JoinHostPort(l.vip, "80") }

// ask returns the name of the server that answers, and fails without an answer.
func (l *lab) ask(t *testing.T, from *netspace.Space, network, source string) string {
	t.Helper()
	conn, err := from.Dial(network, source, l.at())
	if err != nil {
		t.Fatalf("%s %s: %v", network, l.at(), err)
	}
	defer conn.Close()
	answer, err := netspace.AskOn(conn)
	if err != nil {
		t.Fatalf("%s %s: %v", network, l.at(), err)
	}
	server, _, _ := strings.Cut(answer, " ")
	return server
}

// count sends n requests and returns the number of answers of each server.
func (l *lab) count(t *testing.T, n int, from *netspace.Space, network, source string) map[string]int {
	t.Helper()
	answers := make(map[string]int)
	for range n {
		answers[l.ask(t, from, network, source)]++
	}
	return answers
}

var (
	rr     = ipvs.Settings{Scheduler: ipvs.RoundRobin}
	wrr    = ipvs.Settings{Scheduler: "wrr"}
	sticky = ipvs.Settings{Scheduler: ipvs.RoundRobin, Flags: ipvs.Persistent, Timeout: 600}
)

// TestDistribution: connections are spread by weight. The bounds are six standard deviations.
func TestDistribution(t *testing.T) {
	each(t, nftlb.AllTraffic, func(t *testing.T, l *lab) {
		for _, network := range []string{"tcp", "udp"} {
			l.have(t, rr, 1, 5)
			if got := l.count(t, 144, l.client, network, ""); got["pod0"] < 36 || got["pod1"] < 36 {
				t.Errorf("%s rr: %v, want half each", network, got)
			}
			l.have(t, wrr, 3, 9)
			if got := l.count(t, 144, l.client, network, ""); got["pod0"] < 5 || got["pod0"] > 67 {
				t.Errorf("%s wrr: %v, want a quarter and the rest", network, got)
			}
			l.have(t, wrr, 0, 1)
			// A client that reuses the port of an earlier one would continue its flow.
			l.node.Must(t, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
			if got := l.count(t, 10, l.client, network, ""); got["pod1"] != 10 {
				t.Errorf("%s weight 0: %v, want pod1 only", network, got)
			}
		}
		if got := l.count(t, 10, l.node, "tcp", ""); got["pod1"] != 10 {
			t.Errorf("the node's own clients: %v, want pod1 only", got)
		}
	})
}

// TestHash: the selection depends on a client's address, or on its address and port.
func TestHash(t *testing.T) {
	each(t, nftlb.AllTraffic, func(t *testing.T, l *lab) {
		for _, scheduler := range []string{"sh", "mh"} {
			l.have(t, ipvs.Settings{Scheduler: scheduler}, 1, 1)
			if got := l.count(t, 10, l.client, "tcp", l.client1); len(got) != 1 {
				t.Errorf("%s: one client is sent to %v, want one", scheduler, got)
			}
		}
		for _, scheduler := range []string{"sh", "mh"} {
			l.have(t, ipvs.Settings{Scheduler: scheduler, Flags: 0x10}, 1, 1)
			if got := l.count(t, 40, l.client, "tcp", l.client1); len(got) != 2 {
				t.Errorf("%s by port: one client is sent to %v, want two", scheduler, got)
			}
		}
	})
}

// TestRefused: a virtual server without weighted real servers refuses.
func TestRefused(t *testing.T) {
	each(t, nftlb.AllTraffic, func(t *testing.T, l *lab) {
		for _, weights := range [][]uint32{nil, {0, 0}} {
			l.have(t, rr, weights...)
			for _, from := range []*netspace.Space{l.client, l.node} {
				for _, network := range []string{"tcp", "udp"} {
					answer, err := from.Ask(network, l.at())
					if !errors.Is(err, syscall.ECONNREFUSED) {
						t.Errorf("%s with weights %v: answer %q, error %v; want it refused", network, weights, answer, err)
					}
				}
			}
		}
	})
}

// TestAffinity: a client returns to its real server whatever happens to others, until that gets weight 0 or is deleted.
func TestAffinity(t *testing.T) {
	each(t, nftlb.AllTraffic, func(t *testing.T, l *lab) {
		stays := func(when, want string) {
			t.Helper()
			// A new UDP socket may have the port of an earlier one, and with it that one's flow.
			l.node.Must(t, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
			for _, network := range []string{"tcp", "udp"} {
				if got := l.count(t, 12, l.client, network, l.client1); network == "tcp" && got[want] != 12 || len(got) != 1 {
					t.Errorf("%s %s: %v, want always %s", network, when, got, want)
				}
			}
		}
		l.have(t, sticky, 1, 1)
		home := l.ask(t, l.client, "tcp", l.client1)
		stays("at first", home)
		l.have(t, sticky, 1, 1, 1, 1)
		stays("with two more real servers", home)
		l.have(t, ipvs.Settings{Scheduler: "wrr", Flags: ipvs.Persistent, Timeout: 500}, 5, 1, 3)
		stays("with one less, other weights, another scheduler and time-out", home)
		if l.driver = open(t, l.node, nftlb.AllTraffic); l.driver.Balancer == nil {
			t.Fatal("not opened")
		}
		stays("with another process", home)
		if _, err := l.List(); err != nil {
			t.Fatal(err)
		}
		stays("when it has taken over", home)

		weights := map[string][]uint32{"pod0": {0, 1}, "pod1": {1, 0}}[home]
		other := map[string]string{"pod0": "pod1", "pod1": "pod0"}[home]
		l.have(t, sticky, weights...)
		stays("at weight 0", other)
		l.have(t, sticky, 1, 1)
		stays("with weight again", other)
		l.have(t, rr, 1, 1)
		if got := l.count(t, 40, l.client, "tcp", l.client1); len(got) != 2 {
			t.Errorf("without affinity: %v, want both", got)
		}
	})
}

// TestAffinityEnds: the affinity of a client that was absent for the time-out has ended.
func TestAffinityEnds(t *testing.T) {
	each(t, nftlb.AllTraffic, func(t *testing.T, l *lab) {
		l.have(t, ipvs.Settings{Scheduler: ipvs.RoundRobin, Flags: ipvs.Persistent, Timeout: 1}, 1, 1)
		l.ask(t, l.client, "tcp", l.client1)
		family := map[bool]string{true: "ip", false: "ip6"}[l.addresses == ipv4]
		eventually.Nil(t, 10*time.Second, "the end of the affinity", func(context.Context) error {
			listed := command(t, l.node, "nft", "list", "map", family, "ironlb-lb", "affinity")
			return eventually.Unless(!strings.Contains(listed, "elements"), "there is:\n%s", listed)
		})
	})
}

// command runs a program in the namespace as an operator does.
func command(t testing.TB, space *netspace.Space, name string, args ...string) string {
	t.Helper()
	var out []byte
	space.Must(t, func() (err error) {
		if out, err = exec.Command(name, args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return err
	})
	return string(out)
}

// TestConnectionsStay keeps a connection through every change of its virtual server.
func TestConnectionsStay(t *testing.T) {
	each(t, nftlb.AllTraffic, func(t *testing.T, l *lab) {
		l.have(t, rr, 1)
		conn, err := l.client.Dial("tcp", "", l.at())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stays := func(when string) {
			t.Helper()
			if got, err := netspace.AskOn(conn); err != nil || !strings.HasPrefix(got, "pod0 ") {
				t.Errorf("%s: answer %q, error %v; want pod0's", when, got, err)
			}
		}
		stays("at first")
		l.have(t, rr, 0, 1)
		stays("at weight 0")
		l.have(t, sticky, 0, 1)
		stays("with affinity")
		l.driver = open(t, l.node, nftlb.AllTraffic)
		if _, err := l.Virtuals(); err != nil {
			t.Fatal(err)
		}
		stays("after a restart")
		command(t, l.node, "nft", "add", "chain", map[bool]string{true: "ip", false: "ip6"}[l.addresses == ipv4], "ironlb-lb", "foreign")
		if _, err := l.Virtuals(); err != nil {
			t.Fatal(err)
		}
		stays("after a repair")
		if _, err := l.Apply([]ipvs.Op{{Action: ipvs.DeleteVirtual, Virtual: l.key(ipvs.TCP)}}); err != nil {
			t.Fatal(err)
		}
		stays("without a virtual server")
	})
}

// TestClusterInternal: only Pods and the node itself are sent elsewhere than other clients. The drop of policy Local
// does not affect them.
func TestClusterInternal(t *testing.T) {
	each(t, nftlb.ClusterInternal, func(t *testing.T, l *lab) {
		wants := func(when string, from *netspace.Space, source, want string) {
			t.Helper()
			if got := l.count(t, 4, from, "tcp", source); got[want] != 4 {
				t.Errorf("%s: %v, want %s", when, got, want)
			}
		}
		l.have(t, rr, 0, 1)
		wants("a client", l.client, "", "node")
		wants("an unannounced Pod", l.pods[0], "", "node")
		wants("the node", l.node, "", "pod1")
		if err := l.SetPods(prefix(l.pod[0]), prefix(l.pod[1])); err != nil {
			t.Fatal(err)
		}
		wants("a client", l.client, "", "node")
		wants("a Pod", l.pods[0], "", "pod1")
		l.driver = open(t, l.node, nftlb.ClusterInternal)
		if _, err := l.List(); err != nil {
			t.Fatal(err)
		}
		wants("a Pod after a restart", l.pods[0], "", "pod1")

		l.node.Must(t, func() error { return filter(l, []ipvs.Set{ipvs.Dropped}) })
		wants("a Pod while others are dropped", l.pods[0], "", "pod1")
		wants("the node while others are dropped", l.node, "", "pod1")

		l.node.Must(t, func() error { return filter(l, nil) })
		l.have(t, rr)
		for _, from := range []*netspace.Space{l.pods[0], l.node} {
			if answer, err := from.Ask("tcp", l.at()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("without real servers: answer %q, error %v; want it refused", answer, err)
			}
		}
		if err := l.SetPods(); err != nil {
			t.Fatal(err)
		}
		wants("who is a Pod no more", l.pods[0], "", "node")
	})
}

// TestClusterInternalComesFirst: the table for internal clients takes precedence over one for all traffic, in either
// order of creation.
func TestClusterInternalComesFirst(t *testing.T) {
	for _, order := range [][]nftlb.Scope{{nftlb.AllTraffic, nftlb.ClusterInternal}, {nftlb.ClusterInternal, nftlb.AllTraffic}} {
		t.Run(order[0].Table()+" first", func(t *testing.T) {
			each(t, order[0], func(t *testing.T, l *lab) {
				for i, scope := range order {
					if i > 0 {
						l.driver = open(t, l.node, scope)
					}
					if scope == nftlb.AllTraffic {
						l.have(t, rr, 1, 0)
						continue
					}
					l.have(t, rr, 0, 1)
					if err := l.SetPods(prefix(l.pod[0]), prefix(l.pod[1])); err != nil {
						t.Fatal(err)
					}
				}
				for _, c := range []struct {
					who  string
					from *netspace.Space
					want string
				}{{"a client", l.client, "pod0"}, {"a Pod", l.pods[0], "pod1"}, {"the node", l.node, "pod1"}} {
					if got := l.count(t, 4, c.from, "tcp", ""); got[c.want] != 4 {
						t.Errorf("%s: %v, want %s", c.who, got, c.want)
					}
				}
			})
		})
	}
}
