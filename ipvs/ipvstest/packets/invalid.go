package packets

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// A segment of an endpoint that is invalid in conntrack is not forwarded: it might be an answer, and would leave with
// the endpoint's own address.
func invalid(t *testing.T, l *lab) {
	pod, client := netip.MustParseAddr(l.family.pods[0]), netip.MustParseAddr(l.family.client)
	l.client.Route(t, netip.PrefixFrom(pod, l.podBits).Masked().String(), l.family.node)
	s := l.service(l.vip, l.family.pods[0])
	for _, dropped := range []bool{true, false} {
		if !dropped {
			delete(s.elements, ipvs.Element{Set: ipvs.Endpoints, Key: ipvs.Key{Addr: pod}})
		}
		l.apply(t, s)
		to, err := l.client.Dial(l.raw+":tcp", l.family.client, l.family.pods[0])
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		from, err := l.pods[0].Dial(l.raw+":tcp", "", l.family.client)
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		const synFin, syn, bad, good = 0x03, 0x02, 1111, 2222
		for _, packet := range [][]byte{segment(pod, client, bad, synFin), segment(pod, client, good, syn)} {
			if _, err := from.Write(packet); err != nil {
				t.Fatal(err)
			}
		}
		if err := to.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		arrived := make(map[uint16]bool)
		for buffer := make([]byte, 1500); !arrived[good]; {
			n, err := to.Read(buffer)
			if err != nil {
				t.Fatalf("wait for the good segment: %v", err)
			}
			if tcp := transport(buffer[:n], client); len(tcp) >= 4 {
				arrived[binary.BigEndian.Uint16(tcp[2:])] = true
			}
		}
		if arrived[bad] == dropped {
			t.Errorf("from an address in Endpoints %t: the invalid segment arrives %t", dropped, arrived[bad])
		}
	}
}

// Conntrack has no entry for either of two segments to a virtual server that drops new clients. A segment that is
// invalid in conntrack may belong to a draining connection and is not answered. A valid one is answered with a reset.
func invalidDropped(t *testing.T, l *lab) {
	vip, client := netip.MustParseAddr(l.vip), netip.MustParseAddr(l.family.client)
	s := l.service(l.vip, l.family.pods[0]).weigh(l, 0)
	for key := range s.table {
		s.add(ipvs.Element{Set: ipvs.Dropped, Key: key})
	}
	l.apply(t, s)
	conn, err := l.client.Dial(l.raw+":tcp", l.family.client, l.vip)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const none, ack, reset = 0, 0x10, 0x04
	for _, flags := range []byte{none, ack} {
		if _, err := conn.Write(segment(client, vip, 80, flags)); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	if err != nil {
		t.Fatalf("wait for the reset: %v", err)
	}
	if got := transport(buffer[:n], client)[13]; got != reset { // a reset without ACK answers a segment with ACK
		t.Errorf("the first answer has flags %#x, want a reset of the second segment, %#x", got, reset)
	}
}

// transport returns the data of a raw socket without the network header: IPv6 sockets return none.
func transport(b []byte, addr netip.Addr) []byte {
	if addr.Is4() {
		return b[int(b[0]&0xf)*4:]
	}
	return b
}

// segment is a TCP segment without data (RFC 9293, section 3.1).
func segment(from, to netip.Addr, port uint16, flags byte) []byte {
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp[0:], 3333)
	binary.BigEndian.PutUint16(tcp[2:], port)
	tcp[12], tcp[13] = 5<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 1024)
	sum := uint32(len(tcp)) + uint32(ipvs.TCP)
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), tcp} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	return tcp
}
