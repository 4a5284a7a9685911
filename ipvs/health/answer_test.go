package health

import (
	"net/netip"
	"testing"
)

// FuzzAnswerTo: only a segment of at least a header that comes from the port and acknowledges the SYN answers it: one
// with SYN and ACK, or a reset.
func FuzzAnswerTo(f *testing.F) {
	const seq = 0xffffffff // its acknowledgement is 0
	here, there := netip.MustParseAddrPort("192.0.2.1:40000"), netip.MustParseAddrPort("192.0.2.2:80")
	answer := synSegment(there, here, 1)
	for _, flags := range []byte{flagSYN | flagACK, flagRST | flagACK, flagACK, flagSYN, flagRST} {
		answer[13] = flags
		f.Add(append([]byte{}, answer...))
	}
	f.Add(synSegment(here, there, seq))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, segment []byte) {
		flags, ok := answerTo(here.Port(), there.Port(), seq, segment)
		want := len(segment) >= 20 && string(segment[:4]) == "\x00\x50\x9c\x40" && string(segment[8:12]) == "\x00\x00\x00\x00" &&
			segment[13]&0x10 != 0 && segment[13]&0x06 != 0
		if ok != want || ok && flags != segment[13] {
			t.Errorf("%x: %#x, %v, want %v", segment, flags, ok, want)
		}
	})
}
