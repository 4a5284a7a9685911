package packets

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// long sends a long request with one protocol; the answer, of the same length, contains the server and one of the
// client addresses in seen.
func (l *lab) long(
	t *testing.T, from *netspace.Space, network, source string, octets int,
	server string, seen ...string,
) {
	t.Helper()
	conn, err := from.Dial(network, source, at(l.vip, 80))
	if err != nil {
		t.Errorf("%s %s: %v", network, l.vip, err)
		return
	}
	defer conn.Close()
	got, err := netspace.AskLong(0, conn, octets)
	ok := false
	for _, addr := range seen {
		ok = ok || got == server+" "+addr
	}
	if err != nil || !ok {
		t.Errorf("%s %s, %d octets: answer %q, error %v; want one of %s that sees %v",
			network, l.vip, octets, got, err, server, seen)
	}
}

// Fragmented datagrams pass in both directions, although only the first fragment has the ports. They do not bypass the
// source ranges.
func fragments(t *testing.T, l *lab) {
	const octets = 4000
	for _, sets := range [][]ipvs.Set{{ipvs.Masqueraded}, nil} {
		l.apply(t, l.service(l.vip, l.family.pods[0], sets...))
		client, pod, node := l.gateways[0], l.gateways[0], l.gateways[:1]
		if sets == nil {
			client, pod, node = l.family.client, l.family.pods[1], l.nodes()
		}
		l.long(t, l.client, "udp", l.family.client, octets, "pod0", client)
		l.long(t, l.pods[1], "udp", "", octets, "pod0", pod)
		if !l.nodeMTU {
			l.long(t, l.node, "udp", "", octets, "pod0", node...)
		}
	}
	s := l.service(l.vip, l.family.pods[0], ipvs.Restricted)
	s.allow(netip.PrefixFrom(netip.MustParseAddr(l.other), netip.MustParseAddr(l.other).BitLen()).String())
	l.apply(t, s)
	l.long(t, l.client, "udp", l.other, octets, "pod0", l.other)
	conn, err := l.client.DialWithin(silence, "udp", l.family.client, at(l.vip, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := netspace.AskLong(silence, conn, octets); err == nil {
		t.Errorf("%s is not allowed and gets the answer %q", l.family.client, got)
	}
}

// [2.1.9] Path MTU discovery works through a virtual address. The client's segments are too large for the path from the
// node to the Pod, the Pod's for the path to the client. Each gets the ICMP error of a router on the path (RFC 1191,
// RFC 8201) within its own connection.
func smallMTU(sets ...ipvs.Set) func(t *testing.T, l *lab) {
	return func(t *testing.T, l *lab) {
		const mtu, octets = 1280, 20000
		far, bits := netspace.New(t), netip.MustParseAddr(l.far).BitLen()-8
		netspace.Join(t, far, "eth0", fmt.Sprintf("%s/%d", l.far, bits),
			l.client, "far", fmt.Sprintf("%s/%d", l.farRouter, bits))
		far.Route(t, l.services, l.farRouter)
		l.client.Sysctl(t, l.forwarding, "1")
		l.node.Route(t, netip.PrefixFrom(netip.MustParseAddr(l.far), bits).Masked().String(), l.family.client)
		seen := l.far
		if len(sets) > 0 {
			seen = l.gateways[0]
		}
		l.apply(t, l.service(l.vip, l.family.pods[0], sets...))
		l.long(t, far, "tcp", "", octets, "pod0", seen)
		l.client.MTU(t, l.far, "far", mtu)
		l.node.MTU(t, l.family.pods[0], "pod0", mtu)
		l.long(t, far, "tcp", "", octets, "pod0", seen)
	}
}
