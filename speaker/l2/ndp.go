package l2

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
	"golang.org/x/net/bpf"
)

// Sizes and values of neighbor discovery (RFC 4861, 4.3 and 4.4; RFC 8200).
const (
	ip6Len        = 40
	neighborLen   = 24 // a solicitation or advertisement without options
	linkOptionLen = 8

	nextICMPv6        = 58
	typeSolicitation  = 135
	typeAdvertisement = 136
)

var allNodes = netip.MustParseAddr("ff02::1")

// solicitedNode returns the solicited-node group of an address (RFC 4291, 2.7.1).
func solicitedNode(addr netip.Addr) netip.Addr {
	b := addr.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// groupMAC returns the Ethernet address of an IPv6 group (RFC 2464, 7).
func groupMAC(group netip.Addr) mac {
	b := group.As16()
	return mac{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

var errNotNDP = errors.New("not a valid neighbor solicitation or advertisement")

// ndpCodec implements codec for neighbor discovery (RFC 4861, 4862).
type ndpCodec struct{}

func (ndpCodec) family() string { return "ipv6" }
func (ndpCodec) etherType() int { return int(ethernet.EtherTypeIPv6) }

// snap leaves room for other options, such as those of RFC 3971.
func (ndpCodec) snap() int { return 1514 }

// offsets: the sender of a solicitation is the source of the packet; the target of either message follows the ICMPv6
// header.
func (ndpCodec) offsets() (sender, target uint32) { return headerLen + 8, headerLen + ip6Len + 8 }

func (ndpCodec) relevant() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: headerLen + 6, Size: 2}, // next header and hop limit
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: nextICMPv6<<8 | ndp.HopLimit, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: headerLen + ip6Len, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: typeSolicitation, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: typeAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}

// parse: a solicitation asks for its target and uses its source; an advertisement uses its target. What RFC 4861,
// 7.1.1 and 7.1.2, requires to discard silently is rejected; the library checks lengths only.
//
// A solicitation may omit its sender's link-layer address (RFC 4861, 4.3, for a unicast solicitation; some routers omit
// it in others): then the source of the frame is used.
func (ndpCodec) parse(b []byte) (m message, err error) {
	eth, err := parseFrame(b, ethernet.EtherTypeIPv6)
	if err != nil {
		return message{}, err
	}
	from, to, icmp, err := parseIPv6(eth.Payload)
	if err != nil {
		return message{}, err
	}
	if icmp, err = relevantOption(icmp); err != nil {
		return message{}, err
	}
	parsed, err := ndp.ParseMessage(icmp)
	if err != nil {
		return message{}, err
	}
	switch n := parsed.(type) {
	case *ndp.NeighborSolicitation:
		m, err = solicitation(n, from, to)
	case *ndp.NeighborAdvertisement:
		m, err = advertisement(n, to)
	default: // a router's
		return message{}, errNotNDP
	}
	m.dst = mac(eth.Destination)
	if m.from == (mac{}) {
		m.from = mac(eth.Source)
	}
	return m, err
}

func solicitation(n *ndp.NeighborSolicitation, from, to netip.Addr) (message, error) {
	group := solicitedNode(n.TargetAddress)
	m := message{group: groupMAC(group), from: linkAddress(n.Options), sender: from, target: n.TargetAddress}
	switch {
	case n.TargetAddress.IsMulticast(), to != n.TargetAddress && to != group:
		return m, errNotNDP
	case m.probe() && (to != group || m.from != mac{}):
		return m, errNotNDP
	}
	return m, nil
}

func advertisement(n *ndp.NeighborAdvertisement, to netip.Addr) (message, error) {
	if n.TargetAddress.IsMulticast() || n.Solicited && to.IsMulticast() {
		return message{}, errNotNDP
	}
	return message{from: linkAddress(n.Options), sender: n.TargetAddress, reply: true}, nil
}

// linkAddress returns the address of the option that relevantOption has kept; zero if there is none.
func linkAddress(options []ndp.Option) mac {
	for _, o := range options {
		if l, ok := o.(*ndp.LinkLayerAddress); ok {
			return mac(l.Addr)
		}
	}
	return mac{}
}

// parseIPv6 rejects a packet that was forwarded, has a group as source, or is not an ICMPv6 message with code 0 and a
// correct checksum.
func parseIPv6(ip []byte) (from, to netip.Addr, icmp []byte, err error) {
	if len(ip) < ip6Len || ip[0]>>4 != 6 || ip[6] != nextICMPv6 || ip[7] != ndp.HopLimit {
		return from, to, nil, errNotNDP
	}
	end := ip6Len + int(binary.BigEndian.Uint16(ip[4:]))
	if end < ip6Len+neighborLen || end > len(ip) || ip[ip6Len+1] != 0 || !validChecksum(ip[8:end]) {
		return from, to, nil, errNotNDP
	}
	from, to = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	if from.IsMulticast() {
		return from, to, nil, errNotNDP
	}
	return from, to, ip[ip6Len:end], nil
}

// validChecksum reports whether an ICMPv6 message is intact; b begins with the source and destination address, the
// first part of the pseudo header (RFC 8200, 8.1).
func validChecksum(b []byte) bool {
	sum := uint32(len(b)-32) + nextICMPv6
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum == 0xffff
}

// relevantOption removes all options except the sender's link-layer address, the last one of Ethernet's length. The
// others must be ignored (RFC 4861, 7.1.1), but the library rejects a message for some of them. An option with length
// zero, or beyond the end, makes the message invalid (4.6).
func relevantOption(icmp []byte) ([]byte, error) {
	keep := byte(ndp.Source)
	if icmp[0] == typeAdvertisement {
		keep = byte(ndp.Target)
	}
	out := icmp[:neighborLen:neighborLen]
	for rest := icmp[neighborLen:]; len(rest) > 0; {
		if len(rest) < 2 || rest[1] == 0 || 8*int(rest[1]) > len(rest) {
			return nil, errNotNDP
		}
		option := rest[:8*int(rest[1])]
		if option[0] == keep && len(option) == linkOptionLen {
			out = append(out[:neighborLen:neighborLen], option...)
		}
		rest = rest[len(option):]
	}
	return out, nil
}

// answer: a probe has no source address to answer to, so the answer is an unsolicited advertisement to all nodes (RFC
// 4861, 7.2.4). The override flag is always set: a neighbor with the MAC of a previous owner must replace it.
func (c ndpCodec) answer(self station, m message) ([]byte, error) {
	if m.probe() {
		return c.announcement(self, m.target, asRequest)
	}
	return self.ndp(m.from, m.target, m.sender, self.advertisement(m.target, true))
}

func (ndpCodec) announcement(self station, addr netip.Addr, f form) ([]byte, error) {
	if f != asRequest {
		return nil, nil
	}
	return self.ndp(groupMAC(allNodes), addr, allNodes, self.advertisement(addr, false))
}

// probe is the solicitation of duplicate address detection (RFC 4862, 5.4.2).
func (ndpCodec) probe(self station, addr netip.Addr) ([]byte, error) {
	group := solicitedNode(addr)
	return self.ndp(groupMAC(group), netip.IPv6Unspecified(), group, &ndp.NeighborSolicitation{TargetAddress: addr})
}

func (s station) advertisement(addr netip.Addr, solicited bool) ndp.Message {
	return &ndp.NeighborAdvertisement{
		Router: s.router, Solicited: solicited, Override: true, TargetAddress: addr,
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: s.mac[:]}},
	}
}

// ndp returns a frame of the station with a message.
func (s station) ndp(dst mac, from, to netip.Addr, m ndp.Message) ([]byte, error) {
	icmp, err := ndp.MarshalMessageChecksum(m, from, to)
	if err != nil {
		return nil, err
	}
	ip := binary.BigEndian.AppendUint32(make([]byte, 0, ip6Len+len(icmp)), 6<<28)
	ip = binary.BigEndian.AppendUint16(ip, uint16(len(icmp)))
	ip = append(ip, nextICMPv6, ndp.HopLimit)
	ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
	return s.frame(dst, ethernet.EtherTypeIPv6, append(ip, icmp...))
}
