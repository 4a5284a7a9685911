package steady

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Kind of a frame about an address.
type Kind string

const (
	Ask        Kind = "ask"        // ARP request, neighbor solicitation
	Probe      Kind = "probe"      // the same by a station without an address yet: RFC 5227, RFC 4862 5.4.2
	Answer     Kind = "answer"     // to one station
	Gratuitous Kind = "gratuitous" // to all: ARP with one address as sender and target, unsolicited neighbor advertisement
)

// Frame is an ARP frame, or a neighbor solicitation or advertisement.
type Frame struct {
	Kind  Kind
	Addr  netip.Addr // whose hardware address it resolves
	Asker netip.Addr // of Ask and Answer: the requester
	MAC   string     // of Answer and Gratuitous: the advertised one; else the sender's
	Dst   string     // Ethernet destination
	Reply bool       // of a Gratuitous: ARP's reply form
}

const (
	etherLen      = 14
	etherTypeARP  = 0x0806
	etherTypeIPv6 = 0x86dd

	ip6Len     = 40
	icmp6      = 58
	solicit    = 135 // RFC 4861 4.3, 4.4
	advertise  = 136
	optSource  = 1
	optTarget  = 2
	arpRequest = 1
	arpReply   = 2
)

// Parse parses a frame; ok is false if it does not concern an address.
func Parse(b []byte) (f Frame, ok bool) {
	if len(b) < etherLen {
		return f, false
	}
	switch binary.BigEndian.Uint16(b[12:]) {
	case etherTypeARP:
		return parseARP(b)
	case etherTypeIPv6:
		return parseNDP(b)
	}
	return f, false
}

func hardware(b []byte) string { return net.HardwareAddr(b[:6]).String() }

func parseARP(b []byte) (f Frame, ok bool) {
	p := b[etherLen:]
	if len(p) < 28 || binary.BigEndian.Uint16(p) != 1 || binary.BigEndian.Uint16(p[2:]) != 0x0800 || p[4] != 6 || p[5] != 4 {
		return f, false
	}
	sender, target := netip.AddrFrom4([4]byte(p[14:18])), netip.AddrFrom4([4]byte(p[24:28]))
	f = Frame{Addr: target, Asker: sender, MAC: hardware(p[8:]), Dst: hardware(b)}
	op := binary.BigEndian.Uint16(p[6:])
	switch {
	case op != arpRequest && op != arpReply:
		return f, false
	case sender == target:
		f.Kind, f.Reply, f.Asker = Gratuitous, op == arpReply, netip.Addr{}
	case op == arpReply:
		f.Kind, f.Addr, f.Asker = Answer, sender, target
	case sender.IsUnspecified():
		f.Kind = Probe
	default:
		f.Kind = Ask
	}
	return f, true
}

func parseNDP(b []byte) (f Frame, ok bool) {
	p := b[etherLen:]
	if len(p) < ip6Len+24 || p[6] != icmp6 || p[7] != 255 {
		return f, false
	}
	source, dst := netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
	m := p[ip6Len:]
	f = Frame{Addr: netip.AddrFrom16([16]byte(m[8:24])), Asker: source, MAC: hardware(b[6:]), Dst: hardware(b)}
	switch m[0] {
	case solicit:
		f.Kind = Ask
		if source.IsUnspecified() {
			f.Kind = Probe
		}
	case advertise:
		f.Kind, f.Asker = Answer, dst
		if dst.IsMulticast() {
			f.Kind, f.Asker = Gratuitous, netip.Addr{}
		}
		if len(m) >= 32 && m[24] == optTarget && m[25] == 1 {
			f.MAC = hardware(m[26:])
		}
	default:
		return f, false
	}
	return f, true
}

// ask returns a request for addr, from the station mac with the source address asker.
func ask(addr, asker netip.Addr, mac net.HardwareAddr) []byte {
	if addr.Is4() {
		return arp(arpRequest, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, asker, make(net.HardwareAddr, 6), addr)
	}
	a := addr.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
	m := append([]byte{solicit, 0, 0, 0, 0, 0, 0, 0}, a[:]...)
	m = append(append(m, optSource, 1), mac...)
	return ndp(net.HardwareAddr{0x33, 0x33, 0xff, a[13], a[14], a[15]}, mac, asker, group, m)
}

// Claim returns a gratuitous frame of the station mac: an ARP request for its own address, or an unsolicited neighbor
// advertisement with the override flag set.
func Claim(addr netip.Addr, mac net.HardwareAddr) []byte {
	if addr.Is4() {
		return arp(arpRequest, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, addr, make(net.HardwareAddr, 6), addr)
	}
	a := addr.As16()
	m := append([]byte{advertise, 0, 0, 0, 0x20, 0, 0, 0}, a[:]...)
	m = append(append(m, optTarget, 1), mac...)
	return ndp(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, mac, addr, netip.MustParseAddr("ff02::1"), m)
}

func arp(op uint16, dst, mac net.HardwareAddr, sender netip.Addr, targetMAC net.HardwareAddr, target netip.Addr) []byte {
	b := append(append([]byte{}, dst...), mac...)
	b = append(b, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, mac...), sender.AsSlice()...)
	return append(append(b, targetMAC...), target.AsSlice()...)
}

// ndp wraps an ICMPv6 message and sets its checksum.
func ndp(dst, mac net.HardwareAddr, source, to netip.Addr, m []byte) []byte {
	s, d := source.As16(), to.As16()
	pseudo := append(append([]byte{}, s[:]...), d[:]...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(m)))
	pseudo = append(append(pseudo, 0, 0, 0, icmp6), m...)
	binary.BigEndian.PutUint16(m[2:], checksum(pseudo))

	b := append(append(append([]byte{}, dst...), mac...), 0x86, 0xdd, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
	b = append(append(append(b, icmp6, 255), s[:]...), d[:]...)
	return append(b, m...)
}

// checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
