package steady

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	station = net.HardwareAddr{0x02, 0, 0, 0, 0, 1}
	all     = "ff:ff:ff:ff:ff:ff"
)

// Frames of each kind are distinguished. Every lab shows that kernels interpret them as intended.
func TestParse(t *testing.T) {
	v4, from4 := netip.MustParseAddr("192.0.2.129"), netip.MustParseAddr("192.0.2.193")
	v6, from6 := netip.MustParseAddr("2001:db8:0:1::81"), netip.MustParseAddr("2001:db8:0:1::c1")
	reply := func(to netip.Addr, tha net.HardwareAddr, dst net.HardwareAddr) []byte {
		return arp(arpReply, dst, station, v4, tha, to)
	}
	na := func(to netip.Addr, dst net.HardwareAddr) []byte {
		m := append([]byte{advertise, 0, 0, 0, 0x60, 0, 0, 0}, v6.AsSlice()...)
		return ndp(dst, station, v6, to, append(append(m, optTarget, 1), station...))
	}
	other, broadcast := net.HardwareAddr{0x02, 0, 0, 0, 0, 2}, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for name, c := range map[string]struct {
		bytes []byte
		want  Frame
	}{
		"request":          {ask(v4, from4, station), Frame{Kind: Ask, Addr: v4, Asker: from4, MAC: station.String(), Dst: all}},
		"probe":            {ask(v4, netip.IPv4Unspecified(), station), Frame{Kind: Probe, Addr: v4, Asker: netip.IPv4Unspecified(), MAC: station.String(), Dst: all}},
		"reply":            {reply(from4, other, other), Frame{Kind: Answer, Addr: v4, Asker: from4, MAC: station.String(), Dst: other.String()}},
		"gratuitous":       {Claim(v4, station), Frame{Kind: Gratuitous, Addr: v4, MAC: station.String(), Dst: all}},
		"gratuitous reply": {reply(v4, station, broadcast), Frame{Kind: Gratuitous, Addr: v4, MAC: station.String(), Dst: all, Reply: true}},
		"solicitation":     {ask(v6, from6, station), Frame{Kind: Ask, Addr: v6, Asker: from6, MAC: station.String(), Dst: "33:33:ff:00:00:81"}},
		"duplicate address detection": {ask(v6, netip.IPv6Unspecified(), station),
			Frame{Kind: Probe, Addr: v6, Asker: netip.IPv6Unspecified(), MAC: station.String(), Dst: "33:33:ff:00:00:81"}},
		"advertisement": {na(from6, other), Frame{Kind: Answer, Addr: v6, Asker: from6, MAC: station.String(), Dst: other.String()}},
		"unsolicited":   {Claim(v6, station), Frame{Kind: Gratuitous, Addr: v6, MAC: station.String(), Dst: "33:33:00:00:00:01"}},
	} {
		have, ok := Parse(c.bytes)
		if diff := cmp.Diff(c.want, have, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); !ok || diff != "" {
			t.Errorf("%s: ok %t, -want +have:\n%s", name, ok, diff)
		}
		for n := range c.bytes {
			if _, ok := Parse(c.bytes[:n]); ok && n < len(c.bytes)-8 { // the option may be missing
				t.Errorf("%s: %d of %d bytes are taken for a frame", name, n, len(c.bytes))
			}
		}
	}
}

func TestChecksum(t *testing.T) {
	b := ask(netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8::1"), station)
	// The sum over a message and its checksum is zero.
	p := b[etherLen:]
	pseudo := append(append([]byte{}, p[8:40]...), 0, 0, 0, byte(len(p)-ip6Len), 0, 0, 0, icmp6)
	if sum := checksum(append(pseudo, p[ip6Len:]...)); sum != 0 {
		t.Errorf("the sum is %#x, want 0", sum)
	}
}

func TestReport(t *testing.T) {
	began := time.Unix(1000, 0)
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	var r record
	for ms := -100; ms < 1000; ms += 5 {
		r.sent = append(r.sent, at(ms))
		lost := ms >= 200 && ms < 700
		if !lost {
			r.answered = append(r.answered, at(ms+1))
			r.attempts = append(r.attempts, attempt{at(ms), at(ms + 2), nil})
		}
	}
	r.attempts = append(r.attempts, attempt{at(205), at(205 + 900), errNoAnswer})
	r.late = []lateness{{at(300), 7 * time.Millisecond}, {at(-50), time.Second}}
	rep := r.report(began, at(900))
	if rep.Gap != 505*time.Millisecond || rep.ConnGap != 505*time.Millisecond || rep.Outage != 505*time.Millisecond {
		t.Errorf("gaps %v and %v, want 505ms", rep.Gap, rep.ConnGap)
	}
	if rep.Sent != 181 || rep.Answered != 80 || rep.Tried != 82 || rep.Failed != 1 || rep.Late != 7*time.Millisecond {
		t.Errorf("%+v", rep)
	}
	// A gap that began before the span counts in full. A gap that has not ended counts up to the end of the span.
	if rep := r.report(at(400), at(900)); rep.Gap != 505*time.Millisecond {
		t.Errorf("a gap that reaches in: %v, want 505ms", rep.Gap)
	}
	if rep := r.report(at(0), at(600)); rep.Gap != 404*time.Millisecond {
		t.Errorf("a gap that continues: %v, want 404ms", rep.Gap)
	}
	if rep := (record{}).report(at(0), at(600)); rep.Outage != 600*time.Millisecond {
		t.Errorf("nothing at all: %v, want 600ms", rep.Outage)
	}
}

func TestSeen(t *testing.T) {
	began := time.Unix(1000, 0)
	addr := netip.MustParseAddr("192.0.2.129")
	w := &Watcher{asked: map[netip.Addr][]*question{}}
	for i, macs := range [][]string{{"a"}, {"a"}, {}, {"a", "b"}, {"b"}, {"b"}, {"a"}} {
		q := &question{at: began.Add(time.Duration(i) * AskEvery)}
		for _, m := range macs {
			q.answers = append(q.answers, reply{mac: m})
		}
		w.asked[addr] = append(w.asked[addr], q)
	}
	s := w.Seen(addr, began, began.Add(time.Minute))
	if s.Asked != 7 || s.Unanswered != 1 || s.Duplicates != 1 || s.Moves() != 2 || len(s.All) != 2 {
		t.Errorf("%+v", s)
	}
	end := began.Add(7 * AskEvery)
	if have := w.Owner(addr, end.Add(-AskEvery), 2*AskEvery); have != "b" {
		t.Errorf("the owner before the end is %q, want b", have)
	}
	if have := w.Owner(addr, end, 3*AskEvery+AskEvery/2); have != "" {
		t.Errorf("the owner of a span with a move is %q, want none", have)
	}
}
