package packets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/conntrack"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// weigh sets the Pods with these weights as the real servers of every virtual server; a negative weight leaves a Pod
// out.
func (s state) weigh(l *lab, weights ...int) state {
	out := state{make(ipvs.Table), s.elements}
	for key, virtual := range s.table {
		virtual.RealServers = make(map[netip.AddrPort]ipvs.RealServer)
		for i, weight := range weights {
			if weight >= 0 {
				at := netip.AddrPortFrom(netip.MustParseAddr(l.family.pods[i]), 8080)
				virtual.RealServers[at] = ipvs.RealServer{Weight: uint32(weight)}
			}
		}
		out.table[key] = virtual
	}
	return out
}

// become applies the state to the node and then cleans conntrack, as the loop does.
func (l *lab) become(t *testing.T, s state) {
	t.Helper()
	l.apply(t, s)
	l.clean(t, s.table)
}

func (l *lab) clean(t *testing.T, table ipvs.Table) {
	t.Helper()
	l.node.Must(t, func() error {
		_, err := conntrack.Clean(context.Background(), table)
		return err
	})
}

// hairpins adds the elements through which the Pods reach themselves.
func (l *lab) hairpins(s state) state {
	for _, pod := range l.family.pods {
		s.add(ipvs.Element{Set: ipvs.Hairpin, Key: ipvs.Key{Addr: netip.MustParseAddr(pod)}})
	}
	return s
}

// client is a client with an open connection.
type client struct {
	from *netspace.Space
	who  string
	conn net.Conn
	// server is the one that answers it.
	server string
}

// open connects to a virtual server from outside, from a Pod and from the node itself.
func (l *lab) open(t *testing.T, addr, server string) []client {
	t.Helper()
	all := []client{{from: l.client, who: "a client"}, {from: l.pods[1], who: "a Pod"}, {from: l.node, who: "the node"}}
	for i := range all {
		c := &all[i]
		source := ""
		if c.from == l.client {
			source = l.family.client
		}
		conn, err := c.from.Dial("tcp", source, at(addr, 80))
		if err != nil {
			t.Fatalf("%s: %v", c.who, err)
		}
		t.Cleanup(func() { conn.Close() })
		c.conn, c.server = conn, server
	}
	answered(t, all, "at first")
	return all
}

// answered sends requests over connections that must continue.
func answered(t *testing.T, clients []client, when string) {
	t.Helper()
	for _, c := range clients {
		got, err := netspace.AskOn(c.conn)
		if server, _, _ := strings.Cut(got, " "); err != nil || server != c.server {
			t.Errorf("%s: %s: answer %q, error %v; want %s's", when, c.who, got, err, c.server)
		}
	}
}

// reset sends one packet on each connection. It must be answered with a reset without a retransmission. With IPVS a
// packet of the node's own that has no real server passes the hooks a second time, on the loopback interface, and may
// be lost there (net/netfilter/ipvs/ip_vs_core.c, ip_vs_conn_uses_old_conntrack).
func (l *lab) reset(t *testing.T, clients []client, when string) {
	t.Helper()
	for _, c := range clients {
		before, err := netspace.Retransmitted(c.conn)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := netspace.AskOn(c.conn); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %s: answer %q, error %v; want a reset", when, c.who, got, err)
			continue
		}
		after, err := netspace.Retransmitted(c.conn)
		if err != nil || after > before && !(l.nodeMTU && c.from == l.node) {
			t.Errorf("%s: %s: a reset after %d retransmissions, error %v; want none", when, c.who, after-before, err)
		}
	}
}

// A connection to a deleted real server is reset with the client's next packet. One to a draining real server
// continues, and so does one to another. The value of loose (conntrack) does not matter.
func gone(loose string, sets ...ipvs.Set) func(t *testing.T, l *lab) {
	return func(t *testing.T, l *lab) { goneAt(t, l, l.vip, loose, sets...) }
}

// The same at an address of the node.
func goneNodePort(t *testing.T, l *lab) { goneAt(t, l, l.family.node, "1", ipvs.Masqueraded) }

func goneAt(t *testing.T, l *lab, addr, loose string, sets ...ipvs.Set) {
	t.Helper()
	both := l.hairpins(l.service(addr, l.family.pods[0], sets...))
	for _, from := range []string{l.family.client, l.family.pods[1], l.vip, l.family.node} {
		both.allow(netip.PrefixFrom(netip.MustParseAddr(from), netip.MustParseAddr(from).BitLen()).String())
	}
	if l.raw == "ip4" { // a Pod's packets to itself cause redirects, which count as errors (icmp_ratelimit)
		for _, name := range []string{"all", "pod1"} {
			l.node.Sysctl(t, fmt.Sprintf("net.ipv4.conf.%s.send_redirects", name), "0")
		}
	} else { // IPv6 has no such setting
		l.node.Sysctl(t, "net.ipv6.icmp.ratelimit", "0")
	}
	l.become(t, both)
	l.node.Sysctl(t, "net.netfilter.nf_conntrack_tcp_loose", loose)
	first := l.open(t, addr, "pod0")
	l.become(t, both.weigh(l, 0, 1))
	answered(t, first, "while it drains")
	second := l.open(t, addr, "pod1")
	l.become(t, both.weigh(l, -1, 1))
	l.reset(t, first, "when it is gone")
	answered(t, second, "when the other is gone")
	third := l.open(t, addr, "pod1")
	l.become(t, both.weigh(l, -1, -1))
	l.reset(t, append(second, third...), "when all are gone")
	for _, from := range []*netspace.Space{l.client, l.pods[1], l.node} {
		l.refused(t, from, at(addr, 80))
	}
}

// With policy Local and no remaining endpoint here, new clients are dropped, and existing connections are reset.
func goneLocal(t *testing.T, l *lab) {
	s := l.service(l.vip, l.family.pods[0])
	l.become(t, s)
	clients := l.open(t, l.vip, "pod0")
	for key := range s.table {
		s.add(ipvs.Element{Set: ipvs.Dropped, Key: key})
	}
	l.become(t, s.weigh(l, 0))
	answered(t, clients, "while it drains")
	l.become(t, s.weigh(l))
	l.reset(t, clients, "when it is gone")
	for _, from := range []*netspace.Space{l.client, l.pods[1], l.node} {
		l.silent(t, from, "", at(l.vip, 80))
	}
}

// Internal clients have their own list of real servers. A connection to a real server in neither list is reset; one to
// a real server in either list continues.
func goneClusterInternal(t *testing.T, l *lab) {
	var pods ipvs.PodSources
	for _, pod := range l.family.pods {
		pods.Prefixes = append(pods.Prefixes, netip.PrefixFrom(netip.MustParseAddr(pod), l.podBits).Masked())
	}
	s := l.hairpins(l.service(l.vip, l.family.pods[1]))
	l.apply(t, s)
	have, set := ipvs.Table{}, func(ipvs.Table) {}
	l.node.Must(t, func() error {
		balancer, err := nftlb.New(nftlb.ClusterInternal)
		if err != nil {
			return err
		}
		t.Cleanup(balancer.Close)
		set = func(want ipvs.Table) {
			t.Helper()
			l.node.Must(t, func() error {
				_, err := balancer.Apply(ipvs.Diff(have, want))
				have = want
				return err
			})
		}
		return balancer.SetPods(pods)
	})
	// cleaned deletes the conntrack entries of real servers in neither list.
	cleaned := func(outside state) {
		t.Helper()
		table := outside.table.Clone()
		for key, virtual := range have {
			maps.Copy(table[key].RealServers, virtual.RealServers)
		}
		l.clean(t, table)
	}
	set(s.weigh(l, 1).table)
	conn, err := l.client.Dial("tcp", l.family.client, at(l.vip, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	again(t, conn, "pod1 "+l.family.client, "a client")
	inside := []client{{from: l.pods[1], who: "a Pod", server: "pod0"}, {from: l.node, who: "the node", server: "pod0"}}
	for i := range inside {
		if inside[i].conn, err = inside[i].from.Dial("tcp", "", at(l.vip, 80)); err != nil {
			t.Fatal(err)
		}
		defer inside[i].conn.Close()
	}
	cleaned(s)
	answered(t, inside, "at first")
	set(s.weigh(l, -1, 1).table)
	both := s.weigh(l, 1, 1)
	cleaned(both)
	answered(t, inside, "when it is in the other list alone")
	cleaned(s)
	l.reset(t, inside, "when it is in neither")
	again(t, conn, "pod1 "+l.family.client, "a client when those inside are reset")
	l.answers(t, l.node, "", at(l.vip, 80), "pod1", l.nodes()...)
}

// A datagram of a client that keeps its port reaches another real server when its own is deleted.
func goneUDP(t *testing.T, l *lab) {
	s := l.hairpins(l.service(l.vip, l.family.pods[0], ipvs.Masqueraded))
	l.become(t, s)
	conn, err := l.client.Dial("udp", l.family.client, at(l.vip, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	again(t, conn, "pod0 "+l.gateways[0], "at first")
	l.become(t, s.weigh(l, -1, 1))
	again(t, conn, "pod1 "+l.gateways[1], "when it is gone")
}

// A real server has not answered a SYN when it gets weight 0, or is deleted. The first retransmission is answered by
// another one.
func handshake(weight int, sets ...ipvs.Set) func(t *testing.T, l *lab) {
	return func(t *testing.T, l *lab) {
		l.pods[0].Must(t, func() error {
			return netspace.NFT(fmt.Sprintf(`table %s silent {
	chain input { type filter hook input priority 0; tcp dport 8080 drop; }
}`, l.nftFamily()))
		})
		s := l.hairpins(l.service(l.vip, l.family.pods[0], sets...))
		l.become(t, s)
		clients := []client{
			{from: l.client, who: "a client", server: "pod1"},
			{from: l.pods[1], who: "a Pod", server: "pod1"},
		}
		dialed, began := make(chan error, len(clients)), time.Now()
		for i := range clients {
			c := &clients[i]
			go func() {
				var err error
				// An emulated machine may be so slow that several SYNs come too early.
				c.conn, err = c.from.DialWithin(30*time.Second, "tcp", "", at(l.vip, 80))
				dialed <- err
			}()
		}
		l.waitTracked(t, len(clients))
		l.become(t, s.weigh(l, weight, 1))
		already := uint32(time.Since(began) / time.Second) // those that came too early, at most one each second (RFC 6298)
		for range clients {
			if err := <-dialed; err != nil {
				t.Fatal(err)
			}
		}
		answered(t, clients, "when it was sent again")
		for _, c := range clients {
			if n, err := netspace.Retransmitted(c.conn); err != nil || n < 1 || n > already+1 {
				t.Errorf("%s: %d retransmissions, error %v; want 1 and at most %d before", c.who, n, err, already)
			}
			c.conn.Close()
		}
	}
}

// waitTracked waits until the node tracks this number of connections to the first Pod.
func (l *lab) waitTracked(t *testing.T, want int) {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if l.raw == "ip6" {
		family = unix.AF_INET6
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		var flows []*netlink.ConntrackFlow
		l.node.Must(t, func() (err error) {
			flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
			return err
		})
		n := 0
		for _, flow := range flows {
			if flow.Reverse.SrcIP.String() == l.family.pods[0] && flow.Forward.DstPort == 80 {
				n++
			}
		}
		if n == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections, want %d: %v", n, want, flows)
		}
	}
}
