package bfd

import (
	"bytes"
	"testing"
	"time"
)

// golden are packets with their content. The first is the figure in RFC 5880, 4.1, field by field.
var golden = []struct {
	octets []byte
	packet Packet
}{
	{[]byte{0x20, 0xc0, 3, 24, 0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 0x86, 0xa0, 0, 4, 0x93, 0xe0, 0, 0, 0xc3, 0x50},
		Packet{State: Up, Multiplier: 3, My: 1, Your: 2, DesiredTx: 100 * time.Millisecond, RequiredRx: 300 * time.Millisecond, RequiredEchoRx: 50 * time.Millisecond}},
	{[]byte{0x23, 0x68, 255, 24, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0},
		Packet{Diagnostic: NeighborDown, State: Down, Poll: true, Independent: true, Multiplier: 255, My: 0xdeadbeef, DesiredTx: maxInterval, RequiredRx: time.Microsecond}},
	{[]byte{0x3f, 0x93, 1, 24, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		Packet{Diagnostic: 31, State: Init, Final: true, Demand: true, Multipoint: true, Multiplier: 1, My: 9, Your: 8}},
}

func TestPacket(t *testing.T) {
	for _, g := range golden {
		if got := g.packet.Append(nil); !bytes.Equal(got, g.octets) {
			t.Errorf("%+v\nis  %x\nnot %x", g.packet, got, g.octets)
		}
		if got, err := Parse(g.octets); err != nil || got != g.packet {
			t.Errorf("%x\nis   %+v, %v\nnot  %+v", g.octets, got, err, g.packet)
		}
	}
}

// FuzzParse: a parsed packet has the same content after it is written and parsed again, and data beyond its length is
// ignored.
func FuzzParse(f *testing.F) {
	for _, g := range golden {
		f.Add(g.octets)
	}
	f.Add([]byte{0x20, 0xc4, 3, 26, 0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 0x86, 0xa0, 0, 4, 0x93, 0xe0, 0, 0, 0xc3, 0x50, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		if len(b) < PacketLen || b[0]>>5 != 1 || int(b[3]) > len(b) || b[3] < PacketLen {
			t.Fatalf("read %x as %+v", b, p)
		}
		again := p.Append(nil)
		again[3] = b[3]
		if !bytes.Equal(again, b[:PacketLen]) {
			t.Errorf("read  %x\nwrote %x", b[:PacketLen], again)
		}
		if cut, err := Parse(b[:b[3]]); err != nil || cut != p {
			t.Errorf("without what follows %+v, %v; with it %+v", cut, err, p)
		}
	})
}
