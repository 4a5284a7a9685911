package l2

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
)

var (
	self  = mac{2, 0, 0, 0, 0, 1}
	asker = mac{2, 0, 0, 0, 0, 9}
	vip   = netip.MustParseAddr("203.0.113.4")
	host  = netip.MustParseAddr("203.0.113.200")
)

func request(change func(*arpFrame)) arpFrame {
	f := arpFrame{dst: broadcast, src: asker, op: opRequest, senderMAC: asker, senderIP: host, targetIP: vip}
	if change != nil {
		change(&f)
	}
	return f
}

func TestARPParse(t *testing.T) {
	tests := map[string]struct {
		change func(*arpFrame)
		want   message
	}{
		"request": {nil, message{dst: broadcast, group: broadcast, from: asker, sender: host, target: vip}},
		"probe": {func(f *arpFrame) { f.senderIP = netip.IPv4Unspecified() },
			message{dst: broadcast, group: broadcast, from: asker, sender: netip.IPv4Unspecified(), target: vip}},
		"reply": {func(f *arpFrame) { f.op = opReply },
			message{dst: broadcast, group: broadcast, from: asker, sender: host, reply: true}},
		"its own": {func(f *arpFrame) { f.op, f.senderIP = opReply, vip },
			message{dst: broadcast, group: broadcast, from: asker, sender: vip}},
		"announce": {func(f *arpFrame) { f.senderIP = vip }, message{dst: broadcast, group: broadcast, from: asker, sender: vip}},
		"unicast":  {func(f *arpFrame) { f.dst = self }, message{dst: self, group: broadcast, from: asker, sender: host, target: vip}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := (arpCodec{}).parse(request(tt.change).bytes()); err != nil || got != tt.want {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
	for name, change := range map[string]func([]byte){
		"reverse ARP":    func(b []byte) { b[21] = 3 },
		"other hardware": func(b []byte) { b[15] = 6 },
		"other protocol": func(b []byte) { b[17] = 1 },
		"long addresses": func(b []byte) { b[18] = 20 },
		"other frame":    func(b []byte) { b[13] = 0 },
	} {
		b := request(nil).bytes()
		change(b)
		if got, err := (arpCodec{}).parse(b); err == nil {
			t.Errorf("%s parsed as %+v", name, got)
		}
	}
}

// The frames equal those of an independent implementation.
func TestARPReadByAnother(t *testing.T) {
	me := station{mac: self}
	arpRequest := message{dst: broadcast, group: broadcast, from: asker, sender: host, target: vip}
	none := netip.IPv4Unspecified()
	tests := map[string]struct {
		frame              []byte
		dst                mac
		op                 arp.Operation
		senderIP, targetIP netip.Addr
		targetMAC          mac
	}{
		"request form": {arpCodec{}.announcement(me, vip, asRequest), broadcast, arp.OperationRequest, vip, vip, mac{}},
		"reply form":   {arpCodec{}.announcement(me, vip, asReply), broadcast, arp.OperationReply, vip, vip, self},
		"probe":        {arpCodec{}.probe(me, vip), broadcast, arp.OperationRequest, none, vip, mac{}},
		"answer":       {arpCodec{}.answer(me, arpRequest), asker, arp.OperationReply, vip, host, asker},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var eth ethernet.Frame
			if err := eth.UnmarshalBinary(tt.frame); err != nil {
				t.Fatal(err)
			}
			var p arp.Packet
			if err := p.UnmarshalBinary(eth.Payload); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(eth.Destination, tt.dst[:]) || !bytes.Equal(eth.Source, self[:]) || eth.EtherType != ethernet.EtherTypeARP {
				t.Errorf("Ethernet header %v", eth)
			}
			if p.Operation != tt.op || p.SenderIP != tt.senderIP || p.TargetIP != tt.targetIP ||
				!bytes.Equal(p.SenderHardwareAddr, self[:]) || !bytes.Equal(p.TargetHardwareAddr, tt.targetMAC[:]) {
				t.Errorf("ARP packet %+v", p)
			}
		})
	}
}

func FuzzParseARP(f *testing.F) {
	f.Add(request(nil).bytes())
	f.Add(arpCodec{}.announcement(station{mac: self}, vip, asReply))
	f.Add(make([]byte, 60))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseARP(b)
		if err != nil {
			return
		}
		if !bytes.Equal(got.bytes(), b[:arpFrameLen]) {
			t.Errorf("parsed %x, written again %x", b[:arpFrameLen], got.bytes())
		}
		var p arp.Packet
		if err := p.UnmarshalBinary(b[headerLen:]); err != nil {
			t.Errorf("accepted %x, which another parser refuses: %v", b, err)
		}
		_, _ = arpCodec{}.parse(b)
	})
}
