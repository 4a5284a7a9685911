package connections

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCount(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	// open is established 5 s before the fault.
	open := func(pod string) Life {
		return Life{Kept: true, Opened: at(-5), First: at(-4.9), Last: at(20), Pod: pod, Client: "c"}
	}
	broken := func(l Life, after float64, cause Cause) Life {
		l.Ended, l.Cause, l.Last = at(after), cause, at(after-0.5)
		return l
	}
	reset := broken(open("a"), 1, Reset)
	reset.Wire = Wire{Reset: at(1), ResetBy: "node2"}
	// The Pod "dead" is gone from the fault on, and "drained" from 5 s after it.
	f := Fault{Began: at(0), Done: at(2), Gone: map[string]time.Time{"dead": at(0), "drained": at(5)}}
	lives := []Life{
		open("a"), reset, broken(open("b"), 3, WrongBytes), broken(open("b"), 3, OtherPod), broken(open("b"), 3, Closed),
		open("dead"), broken(open("dead"), 10, Timeout), broken(open("dead"), 3, Reset),
		// A Pod that is drained keeps its connections for its grace period.
		broken(open("drained"), 4, Reset), broken(open("drained"), 5.5, Closed),
		// The bound passes after the grace period, but the last answer was before.
		broken(open("drained"), 5.4, Timeout), open("drained"),
		// In handshake when the fault came; the last one answered before it was done.
		{Opened: at(-0.1), Cause: Timeout, Ended: at(9)}, {Opened: at(1), First: at(1.1), Pod: "a"}, {Opened: at(-0.1), First: at(0.5), Pod: "dead"},
		{Opened: at(2.1), First: at(2.2), Pod: "a"}, {Opened: at(3), Cause: Refused, Ended: at(3)},
		// Established, but closed soon; closed by the client before the fault; broken before it.
		{Opened: at(-0.5), First: at(-0.4), Ended: at(1), Pod: "a"},
		{Opened: at(-9), First: at(-8), Ended: at(-7), Pod: "a"}, broken(open("a"), -1, Reset),
	}
	c := CountLives(lives, f)
	want := Count{
		Elsewhere: Share{7, 6}, Gone: Share{5, 3}, During: Share{3, 1}, InHandshake: 1, New: Share{2, 1}, Before: 1,
		Causes: map[string]map[Cause]int{
			ClassElsewhere: {Reset: 2, WrongBytes: 1, OtherPod: 1, Closed: 1, Timeout: 1}, ClassGone: {Timeout: 1, Reset: 1, Closed: 1},
			ClassDuring: {Timeout: 1}, ClassNew: {Refused: 1}, ClassBefore: {Reset: 1},
		},
		Clients: map[string]int{"c": 13}, ResetBy: map[string]int{"node2": 1},
		Pods: map[string]int{"a": 2, "b": 3, "dead": 3, "drained": 4},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("-want +have:\n%s", diff)
	}
	row := Row{Fault: "owner off", Mode: "pod", Count: c, Masked: Share{9, 2}}
	if line := row.Benchmark(2); !strings.HasPrefix(line, "BenchmarkConnections/owner_off/pod-2\t1\t12 established\t7 elsewhere\t6 broken-elsewhere\t") {
		t.Errorf("benchmark line %q", line)
	}
	var table strings.Builder
	if err := Table(&table, []Row{row}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(table.String()), "\n")
	cells := strings.FieldsFunc(lines[2], func(r rune) bool { return r == '|' })
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	if want := []string{"owner off", "pod", "12", "6 of 7", "3 of 5", "1 of 3", "1", "1 of 2", "7 of 9"}; !slices.Equal(cells, want) {
		t.Errorf("cells %q, want %q; the table:\n%s", cells, want, table.String())
	}
}

// frame is a TCP segment between two ports in an Ethernet frame.
func frame(station byte, from, to netip.AddrPort, flags byte, data int) []byte {
	tcp := make([]byte, 20+data)
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	tcp[12], tcp[13] = 5<<4, flags
	b := append(make([]byte, 6), 2, 0, 0, 0, 0, station)
	if from.Addr().Is4() {
		ip := make([]byte, 20)
		ip[0], ip[9] = 0x45, 6
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(tcp)))
		copy(ip[12:], from.Addr().AsSlice())
		copy(ip[16:], to.Addr().AsSlice())
		return slices.Concat(b, []byte{8, 0}, ip, tcp)
	}
	ip := make([]byte, 40)
	ip[0], ip[6] = 0x60, 6
	binary.BigEndian.PutUint16(ip[4:], uint16(len(tcp)))
	copy(ip[8:], from.Addr().AsSlice())
	copy(ip[24:], to.Addr().AsSlice())
	return slices.Concat(b, []byte{0x86, 0xdd}, ip, tcp)
}

// TestCapture: packets of both families and directions are assigned to their connections.
func TestCapture(t *testing.T) {
	for _, pair := range [][2]string{{"192.0.2.100:5000", "192.0.2.129:90"}, {"[2001:db8::64]:5000", "[2001:db8::81]:90"}} {
		client, target := netip.MustParseAddrPort(pair[0]), netip.MustParseAddrPort(pair[1])
		c := &capture{targets: []netip.AddrPort{target}, flows: map[flow]*Wire{}}
		at := func(s int) time.Time { return time.Unix(int64(s), 0) }
		for i, b := range [][]byte{
			frame(1, client, target, flagSYN, 0), frame(1, client, target, flagSYN, 0),
			frame(2, target, client, flagSYN|flagACK, 0), frame(1, client, target, flagACK, 9),
			frame(2, target, client, flagACK, 9), frame(3, target, client, flagACK, 9), frame(3, target, client, flagACK, 9),
			frame(4, target, client, flagACK, 0), frame(4, target, client, flagRST, 0), frame(5, target, client, flagRST|flagACK, 0),
			frame(5, netip.AddrPortFrom(target.Addr(), 91), client, flagRST, 0), // another port
		} {
			c.take(b, at(i))
			for n := range min(len(b), 60) {
				parse(b[:n]) // no panic
			}
		}
		want := Wire{
			SYN: at(0), SYNs: 2, SYNACK: at(2), Reset: at(8), ResetBy: "02:00:00:00:00:04",
			From: []string{"02:00:00:00:00:02", "02:00:00:00:00:03"},
		}
		if diff := cmp.Diff(want, c.wire(target, 5000)); diff != "" {
			t.Errorf("%v: -want +have:\n%s", target, diff)
		}
		if w := c.wire(target, 5001); !w.SYN.IsZero() {
			t.Errorf("a connection without packets: %+v", w)
		}
	}
}
