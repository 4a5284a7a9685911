package l2

import (
	"errors"
	"net/netip"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"golang.org/x/net/bpf"
)

const (
	arpFrameLen   = headerLen + 28
	hardwareEther = 1 // IANA's number of Ethernet
)

var errNotARP = errors.New("not an ARP request or reply for IPv4 over Ethernet")

// arpCodec implements codec for ARP (RFC 826).
type arpCodec struct{}

func (arpCodec) family() string { return "ipv4" }
func (arpCodec) etherType() int { return int(ethernet.EtherTypeARP) }
func (arpCodec) snap() int      { return arpFrameLen }

func (arpCodec) offsets() (sender, target uint32) { return 28, 38 }

func (arpCodec) relevant() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 20, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(arp.OperationRequest), SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(arp.OperationReply), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}

// parse: a request asks for its target, unless it is gratuitous, which asks for none; both forms use their sender.
// Trailing padding is valid. The library also accepts other hardware, protocols, operations and lengths of addresses.
func (arpCodec) parse(b []byte) (message, error) {
	eth, err := parseFrame(b, ethernet.EtherTypeARP)
	if err != nil {
		return message{}, err
	}
	var p arp.Packet
	if err := p.UnmarshalBinary(eth.Payload); err != nil || p.HardwareType != hardwareEther ||
		p.ProtocolType != uint16(ethernet.EtherTypeIPv4) || p.HardwareAddrLength != 6 || p.IPLength != 4 {
		return message{}, errNotARP
	}
	m := message{dst: mac(eth.Destination), group: broadcast, from: mac(p.SenderHardwareAddr), sender: p.SenderIP}
	gratuitous := p.TargetIP == p.SenderIP
	switch p.Operation {
	case arp.OperationRequest:
		if !gratuitous {
			m.target = p.TargetIP
		}
	case arp.OperationReply:
		m.reply = !gratuitous
	default:
		return message{}, errNotARP
	}
	return m, nil
}

func (arpCodec) answer(self station, m message) ([]byte, error) {
	return self.arp(m.from, arp.OperationReply, m.target, m.from, m.sender)
}

// announcement: the request form updates an existing entry at once (RFC 5227, 3: an ARP Announcement). The target of
// the reply form is the sender itself: Linux does not treat a reply to the broadcast address as gratuitous, and ignores
// it within its lock time.
func (arpCodec) announcement(self station, addr netip.Addr, f form) ([]byte, error) {
	if f == asReply {
		return self.arp(broadcast, arp.OperationReply, addr, self.mac, addr)
	}
	return self.arp(broadcast, arp.OperationRequest, addr, mac{}, addr)
}

// probe is RFC 5227's ARP Probe: it has no sender address, so that no cache learns from it.
func (arpCodec) probe(self station, addr netip.Addr) ([]byte, error) {
	return self.arp(broadcast, arp.OperationRequest, netip.IPv4Unspecified(), mac{}, addr)
}

// arp returns an ARP frame of the station.
func (s station) arp(dst mac, op arp.Operation, sender netip.Addr, targetMAC mac, target netip.Addr) ([]byte, error) {
	p, err := arp.NewPacket(op, s.mac[:], sender, targetMAC[:], target)
	if err != nil {
		return nil, err
	}
	payload, err := p.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return s.frame(dst, ethernet.EtherTypeARP, payload)
}
