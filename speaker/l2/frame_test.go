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

func request(change func(*frame)) frame {
	f := frame{dst: broadcast, src: asker, op: opRequest, senderMAC: asker, senderIP: host, targetIP: vip}
	if change != nil {
		change(&f)
	}
	return f
}

func TestAnswer(t *testing.T) {
	owned := func(a netip.Addr) bool { return a == vip }
	tests := map[string]struct {
		change func(*frame)
		want   bool
	}{
		"broadcast request":                   {nil, true},
		"unicast request to us":               {func(f *frame) { f.dst = self }, true},
		"probe of RFC 5227 (sender 0.0.0.0)":  {func(f *frame) { f.senderIP = netip.IPv4Unspecified() }, true},
		"unicast request to another station":  {func(f *frame) { f.dst = asker }, false},
		"multicast request":                   {func(f *frame) { f.dst = mac{1, 0, 0x5e, 0, 0, 1} }, false},
		"reply":                               {func(f *frame) { f.op = opReply }, false},
		"address that we do not own":          {func(f *frame) { f.targetIP = host; f.senderIP = vip }, false},
		"gratuitous request of another":       {func(f *frame) { f.senderIP = vip }, false},
		"sender cannot be reached: broadcast": {func(f *frame) { f.senderMAC = broadcast }, false},
		"sender cannot be reached: zero":      {func(f *frame) { f.senderMAC = mac{} }, false},
		"sent by ourselves":                   {func(f *frame) { f.senderMAC = self }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := request(tt.change)
			got, ok := answer(f, self, owned)
			if ok != tt.want {
				t.Fatalf("answered: %v, want %v", ok, tt.want)
			}
			want := frame{dst: asker, src: self, op: opReply, senderMAC: self, senderIP: vip, targetMAC: asker, targetIP: f.senderIP}
			if ok && got != want {
				t.Errorf("answer %+v, want %+v", got, want)
			}
		})
	}
}

// The frames are what an independent implementation makes of them.
func TestFramesReadByAnother(t *testing.T) {
	tests := map[string]struct {
		f         frame
		op        arp.Operation
		targetMAC mac
	}{
		"request form": {gratuitousRequest(self, vip), arp.OperationRequest, mac{}},
		"reply form":   {gratuitousReply(self, vip), arp.OperationReply, self},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var eth ethernet.Frame
			if err := eth.UnmarshalBinary(tt.f.bytes()); err != nil {
				t.Fatal(err)
			}
			var p arp.Packet
			if err := p.UnmarshalBinary(eth.Payload); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(eth.Destination, broadcast[:]) || !bytes.Equal(eth.Source, self[:]) || eth.EtherType != ethernet.EtherTypeARP {
				t.Errorf("Ethernet header %v", eth)
			}
			if p.Operation != tt.op || p.SenderIP != vip || p.TargetIP != vip || !bytes.Equal(p.SenderHardwareAddr, self[:]) ||
				!bytes.Equal(p.TargetHardwareAddr, tt.targetMAC[:]) {
				t.Errorf("ARP packet %+v", p)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(request(nil).bytes())
	f.Add(gratuitousReply(self, vip).bytes())
	f.Add(make([]byte, 60))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parse(b)
		if err != nil {
			return
		}
		if !bytes.Equal(got.bytes(), b[:frameLen]) {
			t.Errorf("parsed %x, written again %x", b[:frameLen], got.bytes())
		}
		var p arp.Packet
		if err := p.UnmarshalBinary(b[headerLen:]); err != nil {
			t.Errorf("accepted %x, which another parser refuses: %v", b, err)
		}
	})
}
