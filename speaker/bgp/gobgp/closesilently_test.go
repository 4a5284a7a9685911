package gobgp

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/routes"
)

// TestCloseSilently: of two connections to each router, the one to its port ends, permanently and without a
// NOTIFICATION, and the other continues.
func TestCloseSilently(t *testing.T) {
	t.Parallel()
	node, router := netspace.New(t), netspace.New(t)
	netspace.Join(t, node, "eth0", "198.51.100.2/28", router, "eth0", "198.51.100.1/28")
	for _, a := range []string{"2001:db8:1::2/64", "fe80::a1/64"} {
		node.Address(t, "eth0", a)
	}
	for _, a := range []string{"2001:db8:1::1/64", "fe80::b1/64"} {
		router.Address(t, "eth0", a)
	}
	for _, to := range []string{"198.51.100.1", "2001:db8:1::1", "fe80::b1%eth0"} {
		var near, far [2]net.Conn
		for i := range near {
			near[i], far[i] = connect(t, node, router, netip.AddrPortFrom(addr(to), uint16(1790+i)))
		}
		p := routes.Peer{Address: addr(to), Port: 1790}
		if found, err := closeSilently(p); !found || err != nil {
			t.Errorf("%s: found %v: %v", to, found, err)
		}
		if _, err := near[0].Write([]byte("a NOTIFICATION\n")); err == nil {
			t.Errorf("%s: something can still be sent", to)
		}
		far[0].SetReadDeadline(time.Now().Add(patience))
		if n, err := far[0].Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%s: the router received something: %v", to, err)
		}
		fmt.Fprintln(near[1], "hello")
		far[1].SetReadDeadline(time.Now().Add(patience))
		if line, err := bufio.NewReader(far[1]).ReadString('\n'); line != "hello\n" {
			t.Errorf("%s: the other connection sends %q, %v", to, line, err)
		}
		p.Port = 1792
		if found, err := closeSilently(p); found || err != nil {
			t.Errorf("%s: a connection that there is not was found: %v, %v", to, found, err)
		}
	}
}

// connect returns both ends of a connection from one namespace to another.
func connect(t *testing.T, from, at *netspace.Space, to netip.AddrPort) (near, far net.Conn) {
	t.Helper()
	var l net.Listener
	at.Must(t, func() (err error) {
		l, err = net.Listen("tcp", numbered(t, to))
		return err
	})
	defer l.Close()
	from.Must(t, func() (err error) {
		near, err = net.DialTimeout("tcp", numbered(t, to), patience)
		return err
	})
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// numbered returns an address with the interface's index in the calling thread's namespace as its zone; package net
// caches interface names across namespaces.
func numbered(t *testing.T, to netip.AddrPort) string {
	if to.Addr().Zone() != "" {
		i, err := net.InterfaceByName(to.Addr().Zone())
		if err != nil {
			t.Error(err)
			return ""
		}
		to = netip.AddrPortFrom(to.Addr().WithZone(strconv.Itoa(i.Index)), to.Port())
	}
	return to.String()
}
