package l2

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/net/bpf"
)

// Sizes and values of ARP over Ethernet for IPv4 (RFC 826; the EtherTypes are IANA's).
const (
	arpLen      = 28
	arpFrameLen = headerLen + arpLen

	etherTypeARP  = 0x0806
	etherTypeIPv4 = 0x0800
	hardwareEther = 1

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

var errNotARP = errors.New("not an ARP frame for IPv4 over Ethernet")

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

// arpCodec implements codec.
type arpCodec struct{}

func (arpCodec) family() string { return "ipv4" }
func (arpCodec) etherType() int { return etherTypeARP }
func (arpCodec) snap() int      { return arpFrameLen }

func (arpCodec) offsets() (sender, target uint32) { return 28, 38 }

func (arpCodec) relevant() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 20, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: opRequest, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: opReply, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}

// parse: a request asks for its target, unless it is gratuitous, which asks for none; both forms claim their sender.
func (arpCodec) parse(b []byte) (message, error) {
	f, err := parseARP(b)
	if err != nil {
		return message{}, err
	}
	m := message{
		dst: f.dst, group: broadcast, from: f.senderMAC, sender: f.senderIP,
		reply: f.op == opReply && f.targetIP != f.senderIP,
	}
	switch {
	case f.op == opRequest && f.targetIP != f.senderIP:
		m.target = f.targetIP
	case f.op != opRequest && f.op != opReply:
		return message{}, errNotARP
	}
	return m, nil
}

func (arpCodec) answer(self station, m message) []byte {
	return arpFrame{
		dst: m.from, src: self.mac, op: opReply,
		senderMAC: self.mac, senderIP: m.target,
		targetMAC: m.from, targetIP: m.sender,
	}.bytes()
}

// announcement: the request form updates an existing entry at once (RFC 5227, 3: an ARP Announcement). The target of
// the reply form is the sender itself: Linux does not treat a reply to the broadcast address as gratuitous, and ignores
// it within its lock time (wire.md 2.1).
func (arpCodec) announcement(self station, addr netip.Addr, f form) []byte {
	out := arpFrame{dst: broadcast, src: self.mac, op: opRequest, senderMAC: self.mac, senderIP: addr, targetIP: addr}
	if f == asReply {
		out.op, out.targetMAC = opReply, self.mac
	}
	return out.bytes()
}

// probe is RFC 5227's ARP Probe: it has no sender address, so that no cache learns from it.
func (arpCodec) probe(self station, addr netip.Addr) []byte {
	return arpFrame{
		dst: broadcast, src: self.mac, op: opRequest,
		senderMAC: self.mac, senderIP: netip.IPv4Unspecified(), targetIP: addr,
	}.bytes()
}
