package l2

import (
	"encoding/binary"
	"net/netip"
)

// A codec of its own, byte by byte, against which the tests compare; captured_test.go compares both with the frames of
// other implementations.

// Values of ARP over Ethernet for IPv4 (RFC 826; the EtherTypes are IANA's).
const (
	etherTypeARP  = 0x0806
	etherTypeIPv4 = 0x0800

	opRequest = 1
	opReply   = 2
)

// arpFrame is an ARP packet with its Ethernet header.
type arpFrame struct {
	dst, src           mac
	op                 uint16
	senderMAC          mac
	senderIP, targetIP netip.Addr
	targetMAC          mac
}

// parseARP parses a frame and rejects everything that is not exactly ARP for IPv4 over Ethernet. Trailing padding is
// valid.
func parseARP(b []byte) (arpFrame, error) {
	if len(b) < arpFrameLen ||
		binary.BigEndian.Uint16(b[12:]) != etherTypeARP ||
		binary.BigEndian.Uint16(b[14:]) != hardwareEther ||
		binary.BigEndian.Uint16(b[16:]) != etherTypeIPv4 ||
		b[18] != 6 || b[19] != 4 {
		return arpFrame{}, errNotARP
	}
	return arpFrame{
		dst: mac(b[0:6]), src: mac(b[6:12]),
		op:        binary.BigEndian.Uint16(b[20:]),
		senderMAC: mac(b[22:28]), senderIP: netip.AddrFrom4([4]byte(b[28:32])),
		targetMAC: mac(b[32:38]), targetIP: netip.AddrFrom4([4]byte(b[38:42])),
	}, nil
}

// bytes returns the frame in wire format.
func (f arpFrame) bytes() []byte {
	b := make([]byte, 0, arpFrameLen)
	b = append(b, f.dst[:]...)
	b = append(b, f.src[:]...)
	b = binary.BigEndian.AppendUint16(b, etherTypeARP)
	b = binary.BigEndian.AppendUint16(b, hardwareEther)
	b = binary.BigEndian.AppendUint16(b, etherTypeIPv4)
	b = append(b, 6, 4)
	b = binary.BigEndian.AppendUint16(b, f.op)
	b = append(b, f.senderMAC[:]...)
	b = append(b, f.senderIP.AsSlice()...)
	b = append(b, f.targetMAC[:]...)
	return append(b, f.targetIP.AsSlice()...)
}

// Values of neighbor discovery over Ethernet (RFC 4861, 4.3 and 4.4; RFC 2464; RFC 8200).
const (
	ndpFrameLen   = headerLen + ip6Len + neighborLen + linkOptionLen
	etherTypeIPv6 = 0x86dd
	hopLimit      = 255

	optionSource = 1
	optionTarget = 2

	flagRouter    = 1 << 31
	flagSolicited = 1 << 30
	flagOverride  = 1 << 29
)

// neighbor is a neighbor solicitation or advertisement with its headers. lladdr is the sender's link-layer address
// option, zero if there is none.
type neighbor struct {
	dst, src mac
	from, to netip.Addr
	kind     byte
	flags    uint32
	target   netip.Addr
	lladdr   mac
}

// parseNeighbor parses a frame and rejects packets that RFC 4861, 7.1.1 and 7.1.2, requires to discard silently,
// including those with a wrong checksum.
func parseNeighbor(b []byte) (neighbor, error) {
	if len(b) < headerLen+ip6Len+neighborLen || binary.BigEndian.Uint16(b[12:]) != etherTypeIPv6 {
		return neighbor{}, errNotNDP
	}
	ip := b[headerLen:]
	payload := int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || ip[6] != nextICMPv6 || ip[7] != hopLimit || payload < neighborLen || len(ip) < ip6Len+payload {
		return neighbor{}, errNotNDP
	}
	icmp := ip[ip6Len : ip6Len+payload]
	n := neighbor{
		dst: mac(b[0:6]), src: mac(b[6:12]),
		from: netip.AddrFrom16([16]byte(ip[8:24])), to: netip.AddrFrom16([16]byte(ip[24:40])),
		kind: icmp[0], flags: binary.BigEndian.Uint32(icmp[4:]),
		target: netip.AddrFrom16([16]byte(icmp[8:24])),
	}
	if icmp[1] != 0 || checksum(n.from, n.to, icmp) != 0 || n.target.IsMulticast() || n.from.IsMulticast() {
		return neighbor{}, errNotNDP
	}
	want := byte(optionSource)
	switch n.kind {
	case typeSolicitation:
	case typeAdvertisement:
		want = optionTarget
		if n.flags&flagSolicited != 0 && n.to.IsMulticast() {
			return neighbor{}, errNotNDP
		}
	default:
		return neighbor{}, errNotNDP
	}
	var ok bool
	if n.lladdr, ok = linkOption(icmp[neighborLen:], want); !ok {
		return neighbor{}, errNotNDP
	}
	if n.kind == typeSolicitation && n.from.IsUnspecified() && (n.to != solicitedNode(n.target) || n.lladdr != mac{}) {
		return neighbor{}, errNotNDP
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
func (n neighbor) bytes() []byte {
	size := neighborLen
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

// must returns a frame of the codec.
func must(frame []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return frame
}

// message returns what the frame means; ok is false if it is neither a request nor a reply.
func (f arpFrame) message() (m message, ok bool) {
	m = message{dst: f.dst, group: broadcast, from: f.senderMAC, sender: f.senderIP}
	switch gratuitous := f.senderIP == f.targetIP; {
	case gratuitous:
	case f.op == opRequest:
		m.target = f.targetIP
	default:
		m.reply = true
	}
	return m, f.op == opRequest || f.op == opReply
}

// message returns what the frame means; ok is false if it is a solicitation to another group or station.
func (n neighbor) message() (m message, ok bool) {
	m = message{dst: n.dst, from: n.lladdr, sender: n.target, reply: true}
	if m.from == (mac{}) {
		m.from = n.src
	}
	if n.kind == typeAdvertisement {
		return m, true
	}
	group := solicitedNode(n.target)
	m.group, m.sender, m.target, m.reply = groupMAC(group), n.from, n.target, false
	return m, n.to == group || n.to == n.target
}
