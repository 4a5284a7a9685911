package l2

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Sizes and values of ARP over Ethernet for IPv4 (RFC 826; the EtherTypes are IANA's).
const (
	headerLen = 14
	arpLen    = 28
	frameLen  = headerLen + arpLen

	etherTypeARP  = 0x0806
	etherTypeIPv4 = 0x0800
	hardwareEther = 1

	opRequest = 1
	opReply   = 2
)

// mac is an Ethernet address.
type mac [6]byte

var broadcast = mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// unicast tells whether the address can be that of one station.
func (m mac) unicast() bool { return m[0]&1 == 0 && m != mac{} }

// frame is an ARP packet with its Ethernet header.
type frame struct {
	dst, src           mac
	op                 uint16
	senderMAC          mac
	senderIP, targetIP netip.Addr
	targetMAC          mac
}

var errNotARP = errors.New("not an ARP frame for IPv4 over Ethernet")

// parse reads a frame and refuses whatever is not exactly ARP for IPv4 over Ethernet. Padding after it is fine.
func parse(b []byte) (frame, error) {
	if len(b) < frameLen ||
		binary.BigEndian.Uint16(b[12:]) != etherTypeARP ||
		binary.BigEndian.Uint16(b[14:]) != hardwareEther ||
		binary.BigEndian.Uint16(b[16:]) != etherTypeIPv4 ||
		b[18] != 6 || b[19] != 4 {
		return frame{}, errNotARP
	}
	return frame{
		dst: mac(b[0:6]), src: mac(b[6:12]),
		op:        binary.BigEndian.Uint16(b[20:]),
		senderMAC: mac(b[22:28]), senderIP: netip.AddrFrom4([4]byte(b[28:32])),
		targetMAC: mac(b[32:38]), targetIP: netip.AddrFrom4([4]byte(b[38:42])),
	}, nil
}

// bytes returns the frame as it goes onto the wire.
func (f frame) bytes() []byte {
	b := make([]byte, 0, frameLen)
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

// answer returns the reply to a frame that the station self received, and whether there is one to give. Only requests
// are answered that were sent to this station or to all, by a sender that can be reached, for an address that owned
// accepts. A gratuitous request (sender and target are the same address) asks for nothing.
func answer(f frame, self mac, owned func(netip.Addr) bool) (frame, bool) {
	switch {
	case f.op != opRequest,
		f.dst != self && f.dst != broadcast,
		!f.senderMAC.unicast() || f.senderMAC == self,
		f.senderIP == f.targetIP,
		!owned(f.targetIP):
		return frame{}, false
	}
	return frame{
		dst: f.senderMAC, src: self, op: opReply,
		senderMAC: self, senderIP: f.targetIP,
		targetMAC: f.senderMAC, targetIP: f.senderIP,
	}, true
}

// gratuitousRequest tells all stations where an address is (RFC 5227, 3: an ARP Announcement). It corrects an existing
// entry at once (wire.md 2.1).
func gratuitousRequest(self mac, addr netip.Addr) frame {
	return frame{dst: broadcast, src: self, op: opRequest, senderMAC: self, senderIP: addr, targetIP: addr}
}

// gratuitousReply says the same to stations that look at replies only. The target is the sender itself: Linux does not
// take a reply to the broadcast address for gratuitous and ignores it within its lock time (wire.md 2.1).
func gratuitousReply(self mac, addr netip.Addr) frame {
	return frame{dst: broadcast, src: self, op: opReply, senderMAC: self, senderIP: addr, targetMAC: self, targetIP: addr}
}
