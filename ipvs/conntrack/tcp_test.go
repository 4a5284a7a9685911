package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/test/eventually"
)

// tcp forwards TCP packets for the virtual server to one of the Pods, masqueraded.
func (l *lab) tcp(t *testing.T, f family, pod int) {
	t.Helper()
	l.nft(t, fmt.Sprintf(`table %[1]s lab {}
delete table %[1]s lab
table %[1]s lab {
	chain pre { type nat hook prerouting priority -100; %[1]s daddr %[2]v tcp dport { 53, 54 } dnat to %[3]v; }
	chain post { type nat hook postrouting priority 100; ct status dnat masquerade fully-random; }
}`, f.nft, f.vip.Addr, f.pods[pod]))
}

// dialAll opens connections from successive ports of the client.
func (l *lab) dialAll(t *testing.T, f family, first, n int, to uint16) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		conn, err := l.dialTCP(f, first+i, netip.AddrPortFrom(f.vip.Addr, to), 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conns[i] = conn
	}
	return conns
}

// A virtual server has one deleted and one draining real server. The connections to the deleted one are reset with the
// client's next packet. 1,000 connections to the others and to other virtual servers of the address are not touched.
func TestTCPGone(t *testing.T) {
	const others, toGone = 500, 10
	l := newLab(t)
	for i, f := range l.families {
		t.Run(f.name, func(t *testing.T) {
			web, other := f.vip, f.vip
			web.Protocol, other.Protocol, other.Port = ipvs.TCP, ipvs.TCP, 54
			l.tcp(t, f, 0)
			gone := l.dialAll(t, f, 20000+i, toGone, 53)
			stay := l.dialAll(t, f, 21000, others, 54) // the same real server, of another virtual server
			l.tcp(t, f, 1)
			more := l.dialAll(t, f, 22000, others, 53)
			for i, conn := range stay {
				wantAnswer(t, conn, 0)
				wantAnswer(t, more[i], 1)
			}

			both := serving(f.pods[0])
			both.RealServers[f.pods[1]] = ipvs.RealServer{}
			l.clean(t, ipvs.Table{web: both}, 0)
			l.clean(t, ipvs.Table{web: draining(f.pods[1]), other: serving(f.pods[0])}, toGone)
			l.clean(t, ipvs.Table{web: serving(f.pods[1]), other: serving(f.pods[0])}, 0)
			for _, conn := range gone {
				if answer, err := netspace.AskOn(conn); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%v: answer %q, %v; want a reset", conn.LocalAddr(), answer, err)
				}
				if n, err := netspace.Retransmitted(conn); err != nil || n != 0 {
					t.Errorf("%v: reset after %d retransmissions, %v; want none", conn.LocalAddr(), n, err)
				}
			}
			for i, conn := range stay {
				wantAnswer(t, conn, 0)
				wantAnswer(t, more[i], 1)
			}
			l.clean(t, ipvs.Table{web: {}}, others)
		})
	}
}

// An unanswered SYN reaches another real server when it is retransmitted after the first real server got weight 0.
func TestTCPHandshake(t *testing.T) {
	l := newLab(t)
	for _, f := range l.families {
		t.Run(f.name, func(t *testing.T) {
			web := f.vip
			web.Protocol = ipvs.TCP
			l.tcp(t, f, 0)
			l.pods[0].Must(t, func() error {
				return netspace.NFT(fmt.Sprintf(`table %s silent {
	chain in { type filter hook input priority 0; tcp dport 5353 drop; }
}`, f.nft))
			})
			var conn net.Conn
			dialed := make(chan error, 1)
			go func() {
				var err error
				conn, err = l.dialTCP(f, 23000, netip.AddrPortFrom(f.vip.Addr, 53), 10*time.Second)
				dialed <- err
			}()
			l.waitFlow(t, f, 23000)
			l.tcp(t, f, 1)
			reals := serving(f.pods[1])
			reals.RealServers[f.pods[0]] = ipvs.RealServer{Weight: 1}
			l.clean(t, ipvs.Table{web: reals}, 0)
			reals.RealServers[f.pods[0]] = ipvs.RealServer{}
			l.clean(t, ipvs.Table{web: reals}, 1)
			if err := <-dialed; err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			wantAnswer(t, conn, 1)
			if n, err := netspace.Retransmitted(conn); err != nil || n != 1 {
				t.Errorf("%d retransmissions, %v; want 1", n, err)
			}
		})
	}
}

// waitFlow waits until the node tracks a connection from a port of the client.
func (l *lab) waitFlow(t *testing.T, f family, from uint16) {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if f.vip.Addr.Is6() {
		family = unix.AF_INET6
	}
	eventually.Nil(t, 5*time.Second, fmt.Sprintf("a connection from port %d", from), func(context.Context) error {
		var flows []*netlink.ConntrackFlow
		l.node.Must(t, func() (err error) {
			flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
			return err
		})
		for _, flow := range flows {
			if flow.Forward.SrcPort == from {
				return nil
			}
		}
		return fmt.Errorf("there are %v", flows)
	})
}
