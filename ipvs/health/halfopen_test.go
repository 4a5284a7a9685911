package health_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// The kernel of another host, or of this one, answers for its sockets; the program behind a port is not involved.
func TestHalfOpen(t *testing.T) {
	here, pod := netspace.New(t), netspace.New(t)
	netspace.Join(t, here, "eth0", "192.0.2.1/24", pod, "eth0", "192.0.2.2/24")
	here.Address(t, "eth0", "2001:db8::1/64")
	pod.Address(t, "eth0", "2001:db8::2/64")
	waitUsable(t, here, "[2001:db8::1]:0")
	waitUsable(t, pod, "[2001:db8::2]:0")
	pod.Must(t, func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(`table inet t { chain in { type filter hook input priority 0;
			tcp dport 81 drop
			tcp dport 82 reject with icmpx port-unreachable
		}
		}`)
		return nft.Run()
	})
	for _, c := range []struct {
		name, at string
		listens  *netspace.Space
		want     func(error) bool
	}{
		{"listens", "192.0.2.2:80", pod, isNil},
		{"listens, IPv6", "[2001:db8::2]:80", pod, isNil},
		{"a port of this node", "192.0.2.1:80", here, isNil},
		{"a port of this node, IPv6", "[2001:db8::1]:80", here, isNil},
		{"refuses", "192.0.2.2:83", nil, isRefused},
		{"refuses, IPv6", "[2001:db8::2]:83", nil, isRefused},
		{"a port of this node refuses", "192.0.2.1:83", nil, isRefused},
		{"refused by ICMP", "192.0.2.2:82", nil, isRefused},
		{"refused by ICMPv6", "[2001:db8::2]:82", nil, isRefused},
		{"dropped", "192.0.2.2:81", nil, isUnknown},
		{"no listener", "192.0.2.3:80", nil, isUnknown},
		{"no route", "198.51.100.1:80", nil, isUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			var listener *net.TCPListener
			if c.listens != nil {
				c.listens.Must(t, func() error {
					l, err := net.Listen("tcp", c.at)
					if err == nil {
						listener = l.(*net.TCPListener)
					}
					return err
				})
				defer listener.Close()
			}
			limit := 10 * time.Second // for an expected answer
			if c.want(context.DeadlineExceeded) {
				limit = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if err := here.Do(func() error { return health.HalfOpen(ctx, netip.MustParseAddrPort(c.at)) }); !c.want(err) {
				t.Errorf("answer: %v", err)
			}
			if listener == nil {
				return
			}
			// A connection opened after the probe is the first and only one.
			conn, err := here.Dial("tcp", "", c.at)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			first, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer first.Close()
			if first.RemoteAddr().String() != conn.LocalAddr().String() {
				t.Errorf("the program saw a connection from %v before that from %v", first.RemoteAddr(), conn.LocalAddr())
			}
		})
	}
}

func isNil(err error) bool     { return err == nil }
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
func isUnknown(err error) bool { return err != nil && !isRefused(err) }
