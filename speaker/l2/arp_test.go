package l2

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
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
		"short":          func(b []byte) { b[18] = 5 },
		"no hardware":    func(b []byte) { b[18] = 0 },
		"IPv6 addresses": func(b []byte) { b[19] = 16 },
		"no addresses":   func(b []byte) { b[19] = 0 },
		"longest":        func(b []byte) { b[18], b[19] = 255, 255 },
		"operation 0":    func(b []byte) { b[21] = 0 },
		"other frame":    func(b []byte) { b[13] = 0 },
	} {
		b := append(request(nil).bytes(), make([]byte, 600)...) // enough for all lengths
		change(b)
		if got, err := (arpCodec{}).parse(b); err == nil {
			t.Errorf("%s parsed as %+v", name, got)
		}
	}
	b := request(nil).bytes()
	for n := range b {
		if got, err := (arpCodec{}).parse(b[:n]); err == nil {
			t.Errorf("%d bytes parsed as %+v", n, got)
		}
	}
	for _, tag := range [][]byte{{0x81, 0, 0, 7}, {0x88, 0xa8, 0, 7, 0x81, 0, 0, 7}, {0x81, 0, 0, 0}} {
		if got, err := (arpCodec{}).parse(slices.Concat(b[:12], tag, b[12:])); err == nil {
			t.Errorf("with tag %x parsed as %+v", tag, got)
		}
	}
	want, _ := request(nil).message()
	if got, err := (arpCodec{}).parse(append(b, make([]byte, 18)...)); err != nil || got != want {
		t.Errorf("with padding: %+v, %v; want %+v", got, err, want)
	}
}

func TestARPFrames(t *testing.T) {
	me := station{mac: self}
	own := arpFrame{dst: broadcast, src: self, op: opRequest, senderMAC: self, senderIP: vip, targetIP: vip}
	with := func(change func(*arpFrame)) arpFrame { f := own; change(&f); return f }
	tests := map[string]struct {
		frame []byte
		want  arpFrame
	}{
		"request form": {must(arpCodec{}.announcement(me, vip, asRequest)), own},
		"reply form": {must(arpCodec{}.announcement(me, vip, asReply)),
			with(func(f *arpFrame) { f.op, f.targetMAC = opReply, self })},
		"probe": {must(arpCodec{}.probe(me, vip)), with(func(f *arpFrame) { f.senderIP = netip.IPv4Unspecified() })},
		"answer": {must(arpCodec{}.answer(me, message{dst: broadcast, from: asker, sender: host, target: vip})),
			with(func(f *arpFrame) { f.dst, f.op, f.targetMAC, f.targetIP = asker, opReply, asker, host })},
	}
	for name, tt := range tests {
		if want := tt.want.bytes(); !bytes.Equal(tt.frame, want) {
			t.Errorf("%s: %x, want %x", name, tt.frame, want)
		}
	}
	for name, err := range map[string]error{
		"announcement": second(arpCodec{}.announcement(me, vip6, asRequest)),
		"probe":        second(arpCodec{}.probe(me, vip6)),
		"answer":       second(arpCodec{}.answer(me, message{from: asker, sender: host6, target: vip6})),
	} {
		if err == nil {
			t.Errorf("%s: no error for an IPv6 address", name)
		}
	}
}

func second(_ []byte, err error) error { return err }

// FuzzParseARP: the codec and the one of the tests accept the same frames, and find the same in them.
func FuzzParseARP(f *testing.F) {
	f.Add(request(nil).bytes())
	f.Add(must(arpCodec{}.announcement(station{mac: self}, vip, asReply)))
	f.Add(make([]byte, 60))
	f.Add([]byte{})
	for _, frame := range captured(f) {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := arpCodec{}.parse(b)
		frame, otherErr := parseARP(b)
		want, ok := frame.message()
		if ok = ok && otherErr == nil; ok != (err == nil) || ok && got != want {
			t.Errorf("%x: %+v, %v; want %+v, %v", b, got, err, want, otherErr)
		}
	})
}
