package conntrack_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/conntrack"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// lab is a client, a node that translates addresses by nftables, and two Pods, all dual-stack.
type lab struct {
	client, node *netspace.Space
	pods         [2]*netspace.Space
	families     []family
}

// family contains the parameters of one address family.
type family struct {
	name, nft string
	vip       ipvs.Key
	pods      [2]netip.AddrPort
	client    string
}

func key(protocol ipvs.Protocol, at string) ipvs.Key {
	a := netip.MustParseAddrPort(at)
	return ipvs.Key{Addr: a.Addr(), Protocol: protocol, Port: a.Port()}
}

func newLab(t *testing.T) *lab {
	l := &lab{client: netspace.New(t), node: netspace.New(t)}
	netspace.Join(t, l.client, "eth0", "192.0.2.2/24", l.node, "eth0", "192.0.2.1/24")
	l.client.Address(t, "eth0", "2001:db8:2::2/64")
	l.node.Address(t, "eth0", "2001:db8:2::1/64")
	l.client.Route(t, "203.0.113.0/24", "192.0.2.1")
	l.client.Route(t, "2001:db8:f::/64", "2001:db8:2::1")
	for i := range 2 {
		pod := netspace.New(t)
		l.pods[i] = pod
		name := fmt.Sprintf("pod%d", i)
		netspace.Join(t, pod, "eth0", fmt.Sprintf("198.51.100.%d/26", 64*i+2), l.node, name, fmt.Sprintf("198.51.100.%d/26", 64*i+1))
		pod.Address(t, "eth0", fmt.Sprintf("2001:db8:1:%d::2/64", i))
		l.node.Address(t, name, fmt.Sprintf("2001:db8:1:%d::1/64", i))
		pod.Route(t, "192.0.2.0/24", fmt.Sprintf("198.51.100.%d", 64*i+1))
		pod.Route(t, "2001:db8:2::/64", fmt.Sprintf("2001:db8:1:%d::1", i))
		pod.ServeUDP(t, "0.0.0.0:5353", name)
		pod.ServeUDP(t, "[::]:5353", name)
		pod.ServeTCP(t, "0.0.0.0:5353", name)
		pod.ServeTCP(t, "[::]:5353", name)
	}
	l.node.Sysctl(t, "net.ipv4.ip_forward", "1")
	l.node.Sysctl(t, "net.ipv6.conf.all.forwarding", "1")
	// Without a rule the virtual addresses belong to the node itself, as with a local route.
	l.node.Local(t, "203.0.113.4")
	l.node.Local(t, "2001:db8:f::4")
	l.families = []family{
		{"IPv4", "ip", key(ipvs.UDP, "203.0.113.4:53"), [2]netip.AddrPort{
			netip.MustParseAddrPort("198.51.100.2:5353"), netip.MustParseAddrPort("198.51.100.66:5353"),
		}, "192.0.2.2"},
		{"IPv6", "ip6", key(ipvs.UDP, "[2001:db8:f::4]:53"), [2]netip.AddrPort{
			netip.MustParseAddrPort("[2001:db8:1::2]:5353"), netip.MustParseAddrPort("[2001:db8:1:1::2]:5353"),
		}, "2001:db8:2::2"},
	}
	return l
}

// serving is a virtual server with these real servers; draining is one whose real servers have weight 0.
func serving(reals ...netip.AddrPort) ipvs.VirtualServer  { return server(1, reals) }
func draining(reals ...netip.AddrPort) ipvs.VirtualServer { return server(0, reals) }

func server(weight uint32, reals []netip.AddrPort) ipvs.VirtualServer {
	vs := ipvs.VirtualServer{RealServers: map[netip.AddrPort]ipvs.RealServer{}}
	for _, real := range reals {
		vs.RealServers[real] = ipvs.RealServer{Weight: weight}
	}
	return vs
}

// forward makes the node forward packets for the virtual address to an endpoint, or nowhere, and those for another
// port, too.
func (l *lab) forward(t *testing.T, f family, pod int) {
	t.Helper()
	rule := "ct state new counter" // enables connection tracking, as any rule of IronLB does
	if pod >= 0 {
		rule = fmt.Sprintf("%s daddr %v udp dport { 53, 54 } dnat to %v", f.nft, f.vip.Addr, f.pods[pod])
	}
	l.rule(t, f, rule)
}

// rule sets the node's only rule for incoming packets.
func (l *lab) rule(t *testing.T, f family, rule string) {
	t.Helper()
	l.nft(t, fmt.Sprintf(`table %[1]s lab {}
delete table %[1]s lab
table %[1]s lab { chain pre { type nat hook prerouting priority -100; %[2]s; }; }`, f.nft, rule))
}

func (l *lab) nft(t *testing.T, text string) {
	t.Helper()
	l.node.Must(t, func() error { return netspace.NFT(text) })
}

// dial returns a socket of the client with a fixed port.
func (l *lab) dial(t *testing.T, f family, from int, to uint16) net.Conn {
	t.Helper()
	var conn net.Conn
	l.client.Must(t, func() (err error) {
		conn, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(f.client), Port: from},
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(f.vip.Addr, to)))
		return err
	})
	t.Cleanup(func() { conn.Close() })
	return conn
}

func wantAnswer(t *testing.T, conn net.Conn, pod int) {
	t.Helper()
	answer, err := netspace.AskOn(conn)
	if want := fmt.Sprintf("pod%d ", pod); err != nil || !strings.HasPrefix(answer, want) {
		t.Errorf("%v: answer %q, %v; want of %s", conn.LocalAddr(), answer, err, want)
	}
}

func (l *lab) clean(t *testing.T, table ipvs.Table, want int) {
	t.Helper()
	l.node.Must(t, func() error {
		deleted, err := conntrack.Clean(context.Background(), table)
		if deleted != want {
			t.Errorf("%d deleted, want %d", deleted, want)
		}
		return err
	})
}

// A client that keeps its port follows a change of endpoints once the table is cleaned, and not before. Other entries
// stay.
func TestEndpointChange(t *testing.T) {
	l := newLab(t)
	for _, f := range l.families {
		t.Run(f.name, func(t *testing.T) {
			l.forward(t, f, 0)
			conn, other := l.dial(t, f, 40000, 53), l.dial(t, f, 40002, 54)
			wantAnswer(t, conn, 0)
			wantAnswer(t, other, 0)
			table := ipvs.Table{f.vip: serving(f.pods[0])}
			l.clean(t, table, 0)

			l.forward(t, f, 1)
			wantAnswer(t, conn, 0) // the reason for the cleaning
			table[f.vip] = serving(f.pods[1])
			l.clean(t, table, 1)
			wantAnswer(t, conn, 1)
			wantAnswer(t, other, 0) // its port is not in the table
			l.clean(t, table, 0)

			// The same address with another port is another endpoint.
			table[f.vip] = serving(netip.AddrPortFrom(f.pods[1].Addr(), 5354))
			l.clean(t, table, 1)
			wantAnswer(t, conn, 1)
			// A real server with weight 0 takes no datagram, since UDP does not drain.
			l.clean(t, ipvs.Table{f.vip: draining(f.pods[1])}, 1)
			wantAnswer(t, conn, 1)
			l.clean(t, ipvs.Table{f.vip: {}}, 1)
		})
	}
}

// An entry created while there was no endpoint leads nowhere until it is deleted (0 -> n).
func TestFirstEndpoint(t *testing.T) {
	l := newLab(t)
	for _, f := range l.families {
		t.Run(f.name, func(t *testing.T) {
			l.forward(t, f, -1)
			socket := l.listenNowhere(t, f)
			conn := l.dial(t, f, 40001, 53)
			if _, err := conn.Write([]byte("lost")); err != nil {
				t.Fatal(err)
			}
			buffer := make([]byte, 10)
			if n, _, err := socket.ReadFrom(buffer); err != nil || string(buffer[:n]) != "lost" {
				t.Fatalf("the node itself got %q, %v", buffer[:n], err)
			}
			l.forward(t, f, 0)
			l.clean(t, ipvs.Table{f.vip: serving(f.pods[0])}, 1)
			wantAnswer(t, conn, 0)
		})
	}
}

// A TCP client whose SYN went elsewhere before the address became local is refused when it retries, until the entry is
// deleted. A connection to a draining endpoint continues.
func TestTCP(t *testing.T) {
	l := newLab(t)
	for i, f := range l.families {
		t.Run(f.name, func(t *testing.T) {
			vip := f.vip.Addr.Next()
			table := ipvs.Table{
				{Addr: vip, Protocol: ipvs.TCP, Port: 53}: serving(f.pods[0]),
				{Addr: vip, Protocol: ipvs.TCP, Port: 54}: draining(f.pods[0]),
			}
			l.node.Route(t, netip.PrefixFrom(vip, vip.BitLen()).String(), f.pods[0].Addr().String()) // which has another address
			l.rule(t, f, "ct state new counter")
			for _, from := range []int{41000, 41001} {
				if conn, err := l.dialTCP(f, from, netip.AddrPortFrom(vip, 53), 100*time.Millisecond); err == nil {
					conn.Close()
					t.Fatal("another host answers")
				}
			}

			l.node.Local(t, vip.String())
			l.rule(t, f, fmt.Sprintf("%s daddr %v tcp dport { 53, 54 } dnat to %v", f.nft, vip, f.pods[0]))
			drains, err := l.dialTCP(f, 42000+i, netip.AddrPortFrom(vip, 54), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer drains.Close()
			if _, err := l.dialTCP(f, 41000, netip.AddrPortFrom(vip, 53), 0); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("%v, want it refused, which makes cleaning needed and ends the one entry", err)
			}
			l.clean(t, table, 1)
			conn, err := l.dialTCP(f, 41001, netip.AddrPortFrom(vip, 53), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			wantAnswer(t, conn, 0)
			l.clean(t, table, 0)
			wantAnswer(t, drains, 0)
		})
	}
}

// dialTCP connects from a port of the client, with its own timeout unless that is zero.
func (l *lab) dialTCP(f family, from int, to netip.AddrPort, patience time.Duration) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: cmp.Or(patience, time.Minute), LocalAddr: &net.TCPAddr{IP: net.ParseIP(f.client), Port: from}}
	err = l.client.Do(func() (err error) {
		conn, err = dialer.Dial("tcp", to.String())
		return err
	})
	return conn, err
}

// listenNowhere receives on the node the packets that no rule forwards.
func (l *lab) listenNowhere(t *testing.T, f family) net.PacketConn {
	t.Helper()
	var socket net.PacketConn
	l.node.Must(t, func() (err error) {
		socket, err = net.ListenPacket("udp", ":53")
		return err
	})
	t.Cleanup(func() { socket.Close() })
	_ = socket.SetDeadline(time.Now().Add(5 * time.Second))
	return socket
}

// One listing cleans many virtual servers; TCP entries of the same address and port stay.
func TestMany(t *testing.T) {
	l := newLab(t)
	table := ipvs.Table{}
	var conns []net.Conn
	for i, f := range l.families {
		l.forward(t, f, 0)
		for port := range uint16(20) {
			table[ipvs.Key{Addr: f.vip.Addr, Protocol: ipvs.UDP, Port: 1000 + port}] = ipvs.VirtualServer{}
		}
		table[f.vip] = serving(f.pods[1])
		conns = append(conns, l.dial(t, f, 40010+i, 53), l.dial(t, f, 40020+i, 53), l.dial(t, f, 40030+i, 54))
	}
	if conn, err := l.client.Dial("tcp", "", "203.0.113.4:53"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("TCP to the node: %v, %v; want it refused, which leaves an entry", conn, err)
	}
	for _, conn := range conns {
		wantAnswer(t, conn, 0)
	}
	l.clean(t, table, 4)
	l.clean(t, table, 0)
}

func TestContextEnded(t *testing.T) {
	s := netspace.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Must(t, func() error {
		table := ipvs.Table{key(ipvs.UDP, "203.0.113.4:53"): {}}
		if _, err := conntrack.Clean(ctx, table); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want %v", err, context.Canceled)
		}
		return nil
	})
}
