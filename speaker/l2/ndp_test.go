package l2

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/mdlayher/ndp"
	ip6 "golang.org/x/net/ipv6"
)

var (
	vip6  = netip.MustParseAddr("2001:db8::4")
	host6 = netip.MustParseAddr("2001:db8::c8")
)

// solicit is the host's solicitation for the VIP.
func solicit(change func(*neighbour)) neighbour {
	group := solicitedNode(vip6)
	n := neighbour{dst: groupMAC(group), src: asker, from: host6, to: group, kind: typeSolicitation, target: vip6, lladdr: asker}
	if change != nil {
		change(&n)
	}
	return n
}

func TestSolicitedNode(t *testing.T) {
	// The example of RFC 4291, 2.7.1, and RFC 2464, 7.
	group := solicitedNode(netip.MustParseAddr("2001:db8::1:800:200e:8c6c"))
	if group != netip.MustParseAddr("ff02::1:ff0e:8c6c") || groupMAC(group) != (mac{0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c}) {
		t.Errorf("%v, %x", group, groupMAC(group))
	}
	if groupMAC(allNodes) != (mac{0x33, 0x33, 0, 0, 0, 1}) {
		t.Errorf("all nodes: %x", groupMAC(allNodes))
	}
}

func TestNDPParse(t *testing.T) {
	groupOf, other := groupMAC(solicitedNode(vip6)), mac{2, 0, 0, 0, 0, 5}
	solicitation := message{dst: groupOf, group: groupOf, from: asker, sender: host6, target: vip6}
	with := func(change func(*message)) message { m := solicitation; change(&m); return m }
	tests := map[string]struct {
		change func(*neighbour)
		want   message
	}{
		"solicitation":                 {nil, solicitation},
		"without source option":        {func(n *neighbour) { n.lladdr = mac{} }, solicitation},
		"source option of another MAC": {func(n *neighbour) { n.lladdr = other }, with(func(m *message) { m.from = other })},
		"to one station":               {func(n *neighbour) { n.dst, n.to = self, vip6 }, with(func(m *message) { m.dst = self })},
		"group, in a unicast frame":    {func(n *neighbour) { n.dst = self }, with(func(m *message) { m.dst = self })},
		"duplicate address detection":  {func(n *neighbour) { n.from, n.lladdr = netip.IPv6Unspecified(), mac{} }, with(func(m *message) { m.sender = netip.IPv6Unspecified() })},
		"advertisement": {func(n *neighbour) { n.kind = typeAdvertisement; n.to = allNodes; n.dst = groupMAC(allNodes) },
			message{dst: groupMAC(allNodes), from: asker, sender: vip6, reply: true}},
		"advertisement, no option": {func(n *neighbour) { n.kind = typeAdvertisement; n.lladdr = mac{} },
			message{dst: groupOf, from: asker, sender: vip6, reply: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := (ndpCodec{}).parse(solicit(tt.change).bytes()); err != nil || got != tt.want {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

// RFC 4861, 7.1.1 and 7.1.2, require discarding these packets.
func TestNDPRefuses(t *testing.T) {
	// again recomputes the checksum after a change of the ICMPv6 message.
	again := func(b []byte) []byte {
		message := b[headerLen+ip6Len:]
		message[2], message[3] = 0, 0
		binary.BigEndian.PutUint16(message[2:], checksum(netip.AddrFrom16([16]byte(b[22:38])), netip.AddrFrom16([16]byte(b[38:54])), message))
		return b
	}
	if _, err := (ndpCodec{}).parse(again(solicit(nil).bytes())); err != nil {
		t.Fatal("this test proves nothing:", err)
	}
	tests := map[string][]byte{
		"forwarded":                          func() []byte { b := solicit(nil).bytes(); b[21] = 64; return b }(),
		"other next header":                  func() []byte { b := solicit(nil).bytes(); b[20] = 17; return b }(),
		"IPv4":                               func() []byte { b := solicit(nil).bytes(); b[14] = 0x45; return b }(),
		"checksum":                           func() []byte { b := solicit(nil).bytes(); b[56]++; return b }(),
		"cut":                                solicit(nil).bytes()[:headerLen+ip6Len+neighbourLen],
		"code":                               func() []byte { b := solicit(nil).bytes(); b[55] = 1; return again(b) }(),
		"other type":                         func() []byte { b := solicit(nil).bytes(); b[54] = 134; return again(b) }(),
		"option length 0":                    func() []byte { b := solicit(nil).bytes(); b[79] = 0; return again(b) }(),
		"option too long":                    func() []byte { b := solicit(nil).bytes(); b[79] = 2; return again(b) }(),
		"group as target":                    solicit(func(n *neighbour) { n.target = allNodes }).bytes(),
		"group as source":                    solicit(func(n *neighbour) { n.from = allNodes }).bytes(),
		"other destination":                  solicit(func(n *neighbour) { n.to = allNodes }).bytes(),
		"detection with source option":       solicit(func(n *neighbour) { n.from = netip.IPv6Unspecified() }).bytes(),
		"detection to one station":           solicit(func(n *neighbour) { n.from, n.lladdr, n.to = netip.IPv6Unspecified(), mac{}, vip6 }).bytes(),
		"solicited advertisement to a group": solicit(func(n *neighbour) { n.kind, n.flags = typeAdvertisement, flagSolicited }).bytes(),
	}
	for name, b := range tests {
		if got, err := (ndpCodec{}).parse(b); err == nil {
			t.Errorf("%s: parsed as %+v", name, got)
		}
	}
}

// The frames equal those of an independent implementation.
func TestNDPReadByAnother(t *testing.T) {
	router, plain := station{mac: self, router: true}, station{mac: self}
	solicitation := message{dst: self, from: asker, sender: host6, target: vip6}
	probe := message{dst: self, from: asker, sender: netip.IPv6Unspecified(), target: vip6}
	advertisement := func(router, solicited bool) ndp.Message {
		return &ndp.NeighborAdvertisement{Router: router, Solicited: solicited, Override: true, TargetAddress: vip6,
			Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: net.HardwareAddr(self[:])}}}
	}
	group := netip.MustParseAddr("ff02::1:ff00:4")
	tests := map[string]struct {
		frame    []byte
		dst      mac
		from, to netip.Addr
		want     ndp.Message
	}{
		"announcement of a router": {ndpCodec{}.announcement(router, vip6, asRequest), mac{0x33, 0x33, 0, 0, 0, 1}, vip6, allNodes, advertisement(true, false)},
		"announcement":             {ndpCodec{}.announcement(plain, vip6, asRequest), mac{0x33, 0x33, 0, 0, 0, 1}, vip6, allNodes, advertisement(false, false)},
		"answer":                   {ndpCodec{}.answer(plain, solicitation), asker, vip6, host6, advertisement(false, true)},
		"answer of a router":       {ndpCodec{}.answer(router, solicitation), asker, vip6, host6, advertisement(true, true)},
		"defence":                  {ndpCodec{}.answer(plain, probe), mac{0x33, 0x33, 0, 0, 0, 1}, vip6, allNodes, advertisement(false, false)},
		"probe": {ndpCodec{}.probe(router, vip6), mac{0x33, 0x33, 0xff, 0, 0, 4}, netip.IPv6Unspecified(), group,
			&ndp.NeighborSolicitation{TargetAddress: vip6}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := tt.frame
			if mac(b[:6]) != tt.dst || mac(b[6:12]) != self || binary.BigEndian.Uint16(b[12:]) != 0x86dd {
				t.Errorf("Ethernet header %x", b[:14])
			}
			header, err := ip6.ParseHeader(b[14:])
			if err != nil {
				t.Fatal(err)
			}
			if header.HopLimit != 255 || header.NextHeader != 58 || header.PayloadLen != len(b)-54 || header.Version != 6 ||
				!header.Src.Equal(tt.from.AsSlice()) || !header.Dst.Equal(tt.to.AsSlice()) {
				t.Errorf("IPv6 header %v", header)
			}
			want, err := ndp.MarshalMessageChecksum(tt.want, tt.from, tt.to)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b[54:], want) {
				t.Errorf("message %x, want %x", b[54:], want)
			}
		})
	}
}

func FuzzParseNDP(f *testing.F) {
	f.Add(solicit(nil).bytes())
	f.Add(solicit(func(n *neighbour) { n.from, n.lladdr = netip.IPv6Unspecified(), mac{} }).bytes())
	f.Add(ndpCodec{}.announcement(station{mac: self}, vip6, asRequest))
	f.Add(make([]byte, 90))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseNeighbour(b)
		if err != nil {
			return
		}
		_, _ = ndpCodec{}.parse(b)
		message := b[headerLen+ip6Len:][:binary.BigEndian.Uint16(b[headerLen+4:])]
		other, err := ndp.ParseMessage(message)
		if err != nil {
			return // it is stricter about irrelevant options
		}
		var target netip.Addr
		switch m := other.(type) {
		case *ndp.NeighborSolicitation:
			target = m.TargetAddress
		case *ndp.NeighborAdvertisement:
			target = m.TargetAddress
		default:
			t.Fatalf("parsed %x, which another parser takes for %T", b, other)
		}
		if target != got.target {
			t.Errorf("target %v, another parser returns %v", got.target, target)
		}
		if again, err := parseNeighbour(got.bytes()); err != nil || again != got {
			t.Errorf("written again %+v, %v; want %+v", again, err, got)
		}
	})
}
