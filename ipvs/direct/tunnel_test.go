package direct_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/direct"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// control runs a socket option on a connection.
func control(t *testing.T, conn net.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := conn.(interface {
		SyscallConn() (syscall.RawConn, error)
	}).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := errors.Join(raw.Control(func(fd uintptr) { failed = f(int(fd)) }), failed); err != nil {
		t.Fatal(err)
	}
}

// The client learns the MTU of the tunnel by ICMP errors, for datagrams that must not be fragmented. Others pass in
// fragments, of the client or of the node.
func TestLargeDatagrams(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(1)})
		overhead := map[string]int{ipv4.name: 50, ipv6.name: 70}[l.outer.name]
		for _, f := range families {
			level, discover, mtuOf := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
			headers := 28
			if f.name == ipv6.name {
				level, discover, mtuOf, headers = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU, 48
			}
			conn, err := l.client.Dial("udp", "", at(f.vip, servicePort))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if f.name == ipv4.name { // before the path is known
				control(t, conn, func(fd int) error {
					return unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DONT)
				})
				for _, n := range []int{1500 - headers, 4000} {
					if got, err := netspace.AskLong(0, conn, n); err != nil || got != "pod1 "+f.client {
						t.Errorf("%s, %d octets without DF: answer %q, error %v", f.name, n, got, err)
					}
				}
			}
			control(t, conn, func(fd int) error { return unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DO) })
			if _, err := netspace.AskLong(time.Second, conn, 1500-headers); err == nil {
				t.Errorf("%s: a datagram larger than the tunnel is answered", f.name)
			}
			mtu := 0
			control(t, conn, func(fd int) (err error) {
				mtu, err = unix.GetsockoptInt(fd, level, mtuOf)
				return err
			})
			if mtu != 1500-overhead {
				t.Errorf("%s: the client's MTU is %d, want %d", f.name, mtu, 1500-overhead)
			}
			control(t, conn, func(fd int) error { return unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_WANT) })
			for _, n := range []int{mtu - headers, 1500 - headers, 4000} {
				if got, err := netspace.AskLong(0, conn, n); err != nil || got != "pod1 "+f.client {
					t.Errorf("%s, %d octets: answer %q, error %v", f.name, n, got, err)
				}
			}
		}
	})
}

// Segments of a client fit the tunnel from the first. A connection whose SYN/ACK was not clamped learns the MTU.
func TestLargeSegments(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(1)})
		const timestamps = 12
		for _, f := range families {
			want := l.drivers[0].MTU() - 40 - timestamps
			if f.name == ipv6.name {
				want -= 20
			}
			conn, err := l.client.Dial("tcp", "", at(f.vip, servicePort))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			mss := 0
			control(t, conn, func(fd int) (err error) {
				mss, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
				return err
			})
			if mss != want {
				t.Errorf("%s: maximum segment size %d, want %d", f.name, mss, want)
			}
			if got, err := netspace.AskLong(0, conn, 30000); err != nil || got != "pod1 "+f.client {
				t.Errorf("%s: answer %q, error %v", f.name, got, err)
			}
			if n, err := netspace.Retransmitted(conn); err != nil || n != 0 {
				t.Errorf("%s: %d retransmissions, error %v", f.name, n, err)
			}
		}
		for _, family := range []string{"ip", "ip6"} {
			l.nodes[1].Must(t, func() error {
				return netspace.NFT(fmt.Sprintf("flush chain %s %s postrouting", family, direct.TableName))
			})
		}
		for _, f := range families {
			conn, err := l.client.Dial("tcp", "", at(f.vip, servicePort))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if got, err := netspace.AskLong(0, conn, 30000); err != nil || got != "pod1 "+f.client {
				t.Errorf("%s without clamping: answer %q, error %v", f.name, got, err)
			}
		}
	})
}

// A router on the way to a client, where only smaller packets pass, reports to the virtual address: the error reaches
// the Pod, also after a move, whatever the hash is over.
func TestSmallPathToClient(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		const pathMTU = 1300
		router, far := netspace.New(t), netspace.New(t)
		router.Plug(t, "eth0", l.bridge, "router", "192.0.2.254/24", "2001:db8:1::254/64")
		netspace.Join(t, far, "eth0", "203.0.113.2/24", router, "far", "203.0.113.1/24")
		far.Address(t, "eth0", "2001:db8:9::2/64")
		router.Address(t, "far", "2001:db8:9::1/64")
		for _, f := range families {
			router.Sysctl(t, f.forwarding, "1")
			remote, near := map[string]string{ipv4.name: "203.0.113.2", ipv6.name: "2001:db8:9::2"}[f.name], "192.0.2.254"
			gateway := "203.0.113.1"
			if f.name == ipv6.name {
				near, gateway = "2001:db8:1::254", "2001:db8:9::1"
			}
			router.MTU(t, remote, "far", pathMTU)
			far.Route(t, f.everywhere, gateway)
			for i := range l.nodes {
				l.nodes[i].Route(t, f.everywhere, near)
			}
		}
		for _, d := range []ipvs.Directed{
			{Slots: spreadOver(1)}, {Slots: spreadOver(1, 2)}, {Slots: spreadOver(1), ByClient: true},
		} {
			l.direct(t, d)
			for _, owner := range []int{0, 1} {
				for _, f := range families {
					router.Neighbor(t, "eth0", f.vip, l.nodes[owner].MAC(t, "eth0"))
					conn, err := far.Dial("tcp", "", at(f.vip, servicePort))
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					if got, err := netspace.AskLong(0, conn, 30000); err != nil || !strings.HasPrefix(got, "pod") {
						t.Errorf("%s, owner %d, by client %v: answer %q, error %v", f.name, owner, d.ByClient, got, err)
					}
				}
				for i := range l.pods { // what they have learned
					l.pods[i].Must(t, func() error { _, err := run("ip route flush cache"); return err })
					l.pods[i].Must(t, func() error { _, err := run("ip -6 route flush cache"); return err })
				}
			}
		}
	})
}
