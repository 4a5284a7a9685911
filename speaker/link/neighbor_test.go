package link_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestKernelDoesNotAnswerNeighbors solicits a virtual address in an on-link subnet. No parameter is needed: the kernel
// answers only for addresses of the interface (ndisc_recv_ns in net/ipv6/ndisc.c), and does so once the interface has
// it.
func TestKernelDoesNotAnswerNeighbors(t *testing.T) {
	node, client := netspace.New(t), netspace.New(t)
	netspace.Join(t, client, "eth0", "2001:db8::81/64", node, "eth0", "2001:db8::82/64")
	node.Sysctl(t, "net.ipv6.conf.all.forwarding", "1")
	wantChange(t, open(t, node).Add, vip6, true)
	own := netip.MustParseAddr("2001:db8::82")
	if solicit(t, client, vip6, own) {
		t.Errorf("the kernel answers for %v", vip6)
	}
	node.Address(t, "eth0", vip6.String()+"/128")
	// Without this the test proves nothing.
	eventually.True(t, 10*time.Second, fmt.Sprintf("an answer for %v as an address of the interface", vip6), func() bool {
		return solicit(t, client, vip6, own)
	})
}

// icmp6 opens a raw ICMPv6 socket on eth0 of a namespace; it sends with hop limit 255.
func icmp6(t *testing.T, s *netspace.Space) int {
	t.Helper()
	var fd int
	s.Must(t, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6); err != nil {
			return err
		}
		patience := unix.NsecToTimeval((100 * time.Millisecond).Nanoseconds())
		return errors.Join(
			unix.BindToDevice(fd, "eth0"),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		)
	})
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// solicit solicits the target, and then the node's own address, which is answered after the target (RFC 4861, sections
// 4.3 and 4.4). It repeats that until something arrives: a new interface is not ready at once.
func solicit(t *testing.T, from *netspace.Space, target, own netip.Addr) bool {
	t.Helper()
	fd := icmp6(t, from)
	probe := func() {
		for _, addr := range []netip.Addr{target, own} {
			low := addr.As16()
			group := [16]byte{0xff, 0x02, 11: 1, 12: 0xff, 13: low[13], 14: low[14], 15: low[15]}
			message := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, addr.AsSlice()...)
			message = append(append(message, 1, 1), from.MAC(t, "eth0")...) // source link-layer address
			_ = unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: group})
		}
	}
	answered := false
	probe()
	for buffer, deadline := make([]byte, 1500), time.Now().Add(10*time.Second); time.Now().Before(deadline); {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EAGAIN) {
			probe()
		}
		if err != nil || n < 24 || buffer[0] != 136 {
			continue
		}
		switch netip.AddrFrom16([16]byte(buffer[8:24])) {
		case target:
			answered = true
		case own:
			return answered
		}
	}
	t.Fatalf("no advertisement of %v", own)
	return false
}
