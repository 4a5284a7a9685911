package l2

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// captured returns the frames of other implementations in testdata/captured, by name; the files state their origin, and
// testdata/capture.sh captures them again.
func captured(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/captured/*.hex")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captured frames: %v", err)
	}
	frames := map[string][]byte{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var digits strings.Builder
		for line := range strings.Lines(string(data)) {
			if !strings.HasPrefix(line, "#") {
				digits.WriteString(strings.TrimSpace(line))
			}
		}
		frame, err := hex.DecodeString(digits.String())
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		frames[strings.TrimSuffix(filepath.Base(file), ".hex")] = frame
	}
	return frames
}

// TestCapturedFrames: the codecs read the frames of other implementations as expected, and write the same bytes where
// they write such a frame. asker and self are the stations there.
func TestCapturedFrames(t *testing.T) {
	ask := message{dst: broadcast, group: broadcast, from: asker, sender: host, target: vip}
	group := mac{0x33, 0x33, 0xff, 0, 0, 4}
	ask6 := message{dst: group, group: group, from: asker, sender: host6, target: vip6}
	linkLocal := netip.MustParseAddr("fe80::ff:fe00:9")
	none, none6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	all := mac{0x33, 0x33, 0, 0, 0, 1}
	node, router, other := station{mac: self}, station{mac: self, router: true}, station{mac: asker}
	for name, tt := range map[string]struct {
		want message
		// same is our frame with the same values, nil if the codec writes none.
		same []byte
		// differs names the bytes in which it differs.
		differs string
	}{
		"linux-arp-request": {want: ask},
		"linux-arp-unicast": {want: message{dst: self, group: broadcast, from: asker, sender: host, target: vip}},
		"linux-arp-reply": {want: message{dst: asker, group: broadcast, from: self, sender: vip, reply: true},
			same: must(arpCodec{}.answer(node, ask))},
		"linux-arp-announcement": {want: message{dst: broadcast, group: broadcast, from: self, sender: vip},
			same: must(arpCodec{}.announcement(node, vip, asRequest))},
		"arping-request": {want: ask},
		"arping-probe": {want: message{dst: broadcast, group: broadcast, from: asker, sender: none, target: vip},
			same: must(arpCodec{}.probe(other, vip))},
		"arping-unsolicited": {want: message{dst: broadcast, group: broadcast, from: asker, sender: vip},
			same: must(arpCodec{}.announcement(other, vip, asRequest)), differs: "target"},
		"arping-reply": {want: message{dst: broadcast, group: broadcast, from: asker, sender: vip},
			same: must(arpCodec{}.announcement(other, vip, asReply)), differs: "target"},
		"keepalived-garp": {want: message{dst: broadcast, group: broadcast, from: self, sender: vip},
			same: must(arpCodec{}.announcement(node, vip, asRequest)), differs: "target"},

		"linux-ns":         {want: ask6},
		"linux-ns-unicast": {want: message{dst: self, group: group, from: asker, sender: linkLocal, target: vip6}},
		"linux-ns-dad":     {want: message{dst: group, group: group, from: self, sender: none6, target: vip6}}, // a nonce
		"linux-ns-dad-plain": {want: message{dst: group, group: group, from: self, sender: none6, target: vip6},
			same: must(ndpCodec{}.probe(node, vip6))},
		"linux-na": {want: message{dst: asker, from: self, sender: vip6, reply: true},
			same: must(ndpCodec{}.answer(node, ask6))},
		"linux-na-router": {want: message{dst: asker, from: self, sender: vip6, reply: true},
			same: must(ndpCodec{}.answer(router, ask6))},
		"linux-na-unsolicited": {want: message{dst: all, from: self, sender: vip6, reply: true},
			same: must(ndpCodec{}.announcement(node, vip6, asRequest))},
		"linux-rs":  {}, // refused
		"ndisc6-ns": {want: ask6},
		"keepalived-na": {want: message{dst: all, from: self, sender: vip6, reply: true},
			same: must(ndpCodec{}.announcement(node, vip6, asRequest))},
	} {
		t.Run(name, func(t *testing.T) {
			frame := captured(t)[name]
			c := codec(arpCodec{})
			if bytes.HasPrefix(frame[12:], []byte{0x86, 0xdd}) {
				c = ndpCodec{}
			}
			got, err := c.parse(frame)
			if (tt.want == message{}) != (err != nil) || err == nil && got != tt.want {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
			if tt.same == nil {
				return
			}
			// arping pads, keepalived does not.
			theirs := bytes.Clone(frame[:min(len(frame), len(tt.same))])
			if tt.differs == "target" { // its hardware address, which RFC 5227 leaves open: theirs is broadcast
				copy(theirs[32:38], tt.same[32:38])
			}
			if !bytes.Equal(tt.same, theirs) {
				t.Errorf("we write %x, they %x", tt.same, theirs)
			}
		})
	}
	if n := len(captured(t)); n != 19 {
		t.Errorf("%d captured frames, 19 are tested", n)
	}
}

// TestCodecOfTheTests: the tests' own codec reads and writes the captured frames, too.
func TestCodecOfTheTests(t *testing.T) {
	for name, frame := range captured(t) {
		if f, err := parseARP(frame); err == nil {
			if !bytes.Equal(f.bytes(), frame[:arpFrameLen]) {
				t.Errorf("%s: %x, want %x", name, f.bytes(), frame)
			}
			continue
		}
		n, err := parseNeighbor(frame)
		switch {
		case name == "linux-rs", name == "linux-ns-dad", name == "ndisc6-ns": // a router's, a nonce, a flow label
		case err != nil || !bytes.Equal(n.bytes(), frame):
			t.Errorf("%s: %x, %v; want %x", name, n.bytes(), err, frame)
		}
	}
}
