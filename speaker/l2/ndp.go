package l2

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/net/bpf"
)

// Sizes and values of neighbour discovery over Ethernet (RFC 4861, 4.3 and 4.4; RFC 2464; RFC 8200).
const (
	ip6Len        = 40
	neighbourLen  = 24 // a solicitation or advertisement without options
	linkOptionLen = 8
	ndpFrameLen   = headerLen + ip6Len + neighbourLen + linkOptionLen

	etherTypeIPv6 = 0x86dd
	nextICMPv6    = 58
	hopLimit      = 255 // of a packet that no router has forwarded

	typeSolicitation  = 135
	typeAdvertisement = 136

	optionSource = 1
	optionTarget = 2

	flagRouter    = 1 << 31
	flagSolicited = 1 << 30
	flagOverride  = 1 << 29
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

// neighbour is a neighbour solicitation or advertisement with its headers. lladdr is the sender's link-layer address
// option, zero if there is none.
type neighbour struct {
	dst, src mac
	from, to netip.Addr
	kind     byte
	flags    uint32
	target   netip.Addr
	lladdr   mac
}

var errNotNDP = errors.New("not a valid neighbour solicitation or advertisement")

// parseNeighbour parses a frame and rejects packets that RFC 4861, 7.1.1 and 7.1.2, requires to discard silently,
// including those with a wrong checksum.
func parseNeighbour(b []byte) (neighbour, error) {
	if len(b) < headerLen+ip6Len+neighbourLen || binary.BigEndian.Uint16(b[12:]) != etherTypeIPv6 {
		return neighbour{}, errNotNDP
	}
	ip := b[headerLen:]
	payload := int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || ip[6] != nextICMPv6 || ip[7] != hopLimit || payload < neighbourLen || len(ip) < ip6Len+payload {
		return neighbour{}, errNotNDP
	}
	icmp := ip[ip6Len : ip6Len+payload]
	n := neighbour{
		dst: mac(b[0:6]), src: mac(b[6:12]),
		from: netip.AddrFrom16([16]byte(ip[8:24])), to: netip.AddrFrom16([16]byte(ip[24:40])),
		kind: icmp[0], flags: binary.BigEndian.Uint32(icmp[4:]),
		target: netip.AddrFrom16([16]byte(icmp[8:24])),
	}
	if icmp[1] != 0 || checksum(n.from, n.to, icmp) != 0 || n.target.IsMulticast() || n.from.IsMulticast() {
		return neighbour{}, errNotNDP
	}
	want := byte(optionSource)
	switch n.kind {
	case typeSolicitation:
	case typeAdvertisement:
		want = optionTarget
		if n.flags&flagSolicited != 0 && n.to.IsMulticast() {
			return neighbour{}, errNotNDP
		}
	default:
		return neighbour{}, errNotNDP
	}
	var ok bool
	if n.lladdr, ok = linkOption(icmp[neighbourLen:], want); !ok {
		return neighbour{}, errNotNDP
	}
	if n.kind == typeSolicitation && n.from.IsUnspecified() && (n.to != solicitedNode(n.target) || n.lladdr != mac{}) {
		return neighbour{}, errNotNDP
	}
	return n, nil
}

// linkOption returns the link-layer address option of a kind. It ignores unknown options; an option with length zero
// makes the packet invalid (RFC 4861, 4.6).
func linkOption(options []byte, kind byte) (addr mac, ok bool) {
	for len(options) > 0 {
		if len(options) < 2 {
			return mac{}, false
		}
		size := 8 * int(options[1])
		if size == 0 || size > len(options) {
			return mac{}, false
		}
		if options[0] == kind && size == linkOptionLen {
			addr = mac(options[2:8])
		}
		options = options[size:]
	}
	return addr, true
}

// bytes returns the frame in wire format.
func (n neighbour) bytes() []byte {
	size := neighbourLen
	if n.lladdr != (mac{}) {
		size += linkOptionLen
	}
	b := make([]byte, 0, ndpFrameLen)
	b = append(b, n.dst[:]...)
	b = append(b, n.src[:]...)
	b = binary.BigEndian.AppendUint16(b, etherTypeIPv6)
	b = binary.BigEndian.AppendUint32(b, 6<<28)
	b = binary.BigEndian.AppendUint16(b, uint16(size))
	b = append(b, nextICMPv6, hopLimit)
	b = append(b, n.from.AsSlice()...)
	b = append(b, n.to.AsSlice()...)
	b = append(b, n.kind, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, n.flags)
	b = append(b, n.target.AsSlice()...)
	switch {
	case n.lladdr == mac{}:
	case n.kind == typeSolicitation:
		b = append(append(b, optionSource, 1), n.lladdr[:]...)
	default:
		b = append(append(b, optionTarget, 1), n.lladdr[:]...)
	}
	icmp := b[headerLen+ip6Len:]
	binary.BigEndian.PutUint16(icmp[2:], checksum(n.from, n.to, icmp))
	return b
}

// checksum returns the Internet checksum of an ICMPv6 message with its pseudo header (RFC 8200, 8.1); 0 for a message
// with a correct checksum.
func checksum(from, to netip.Addr, icmp []byte) uint16 {
	sum := uint32(len(icmp)) + nextICMPv6
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(b[0])<<8 | uint32(b[1])
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	a, c := from.As16(), to.As16()
	add(a[:])
	add(c[:])
	add(icmp)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// ndpCodec implements codec.
type ndpCodec struct{}

func (ndpCodec) family() string { return "ipv6" }
func (ndpCodec) etherType() int { return etherTypeIPv6 }

// snap leaves room for other options, such as those of RFC 3971.
func (ndpCodec) snap() int { return 1514 }

// offsets: the sender of a solicitation is the source of the packet; the target of either message follows the ICMPv6
// header.
func (ndpCodec) offsets() (sender, target uint32) { return headerLen + 8, headerLen + ip6Len + 8 }

func (ndpCodec) relevant() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: headerLen + 6, Size: 2}, // next header and hop limit
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: nextICMPv6<<8 | hopLimit, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: headerLen + ip6Len, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: typeSolicitation, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: typeAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}

// parse: a solicitation asks for its target and claims its source; an advertisement claims its target.
//
// A solicitation may omit its sender's link-layer address (RFC 4861, 4.3, for a unicast solicitation; some routers omit
// it in others): then the source of the frame is used.
func (ndpCodec) parse(b []byte) (message, error) {
	n, err := parseNeighbour(b)
	if err != nil {
		return message{}, err
	}
	m := message{dst: n.dst, from: n.lladdr, sender: n.from, target: n.target}
	if m.from == (mac{}) {
		m.from = n.src
	}
	if n.kind == typeAdvertisement {
		m.sender, m.target, m.reply = n.target, netip.Addr{}, true
		return m, nil
	}
	if group := solicitedNode(n.target); n.to == n.target || n.to == group {
		m.group = groupMAC(group)
		return m, nil
	}
	return message{}, errNotNDP
}

// answer: a probe has no source address to answer to, so the answer is an unsolicited advertisement to all nodes (RFC
// 4861, 7.2.4). The override flag is always set: a neighbour with the MAC of a previous owner must replace it (wire.md
// 2.1).
func (c ndpCodec) answer(self station, m message) []byte {
	if m.probe() {
		return c.announcement(self, m.target, asRequest)
	}
	return neighbour{
		dst: m.from, src: self.mac, from: m.target, to: m.sender,
		kind: typeAdvertisement, flags: flagSolicited | flagOverride | self.flags(), target: m.target, lladdr: self.mac,
	}.bytes()
}

func (ndpCodec) announcement(self station, addr netip.Addr, f form) []byte {
	if f != asRequest {
		return nil
	}
	return neighbour{
		dst: groupMAC(allNodes), src: self.mac, from: addr, to: allNodes,
		kind: typeAdvertisement, flags: flagOverride | self.flags(), target: addr, lladdr: self.mac,
	}.bytes()
}

// probe is the solicitation of duplicate address detection (RFC 4862, 5.4.2).
func (ndpCodec) probe(self station, addr netip.Addr) []byte {
	group := solicitedNode(addr)
	return neighbour{
		dst: groupMAC(group), src: self.mac, from: netip.IPv6Unspecified(), to: group,
		kind: typeSolicitation, target: addr,
	}.bytes()
}

func (s station) flags() uint32 {
	if s.router {
		return flagRouter
	}
	return 0
}
