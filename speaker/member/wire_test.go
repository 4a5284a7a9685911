package member

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

func testCore(t testing.TB, node string) *Core {
	t.Helper()
	c, err := NewCore(Config{Node: node, Cluster: "default", Incarnation: 7, Keys: [][]byte{bytes.Repeat([]byte("k"), 32)}, Profile: Standard})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// samples are bodies with all fields, as sent.
func samples() (bodies [][]byte) {
	begin := func(kind byte, value ...byte) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(value))), value...)
	}
	hello := begin(fieldHello, append([]byte{flagLeaving, 0, 100, 1, 194}, make([]byte, 16)...)...)
	number := func(n ...uint64) (b []byte) {
		for _, n := range n {
			b = binary.BigEndian.AppendUint64(b, n)
		}
		return b
	}
	claims := number(3, 9)
	for _, e := range []entry{
		{id: 1, claim: view.Claim{State: view.Held, Generation: 1 << 40, Rank: 65535}}, {id: 2},
		{id: 3, claim: view.Claim{State: view.HandingOver, Generation: 5, Successor: "node-2"}}, {id: 4, claim: view.Claim{State: view.Declined}},
	} {
		claims = appendEntry(claims, e)
	}
	for _, field := range [][]byte{
		nil,
		begin(fieldSegments, append(number(5), 2, 2, 0, 0, 0, 0, 1)...), begin(fieldSegments),
		begin(fieldClaims, claims...),
		begin(fieldWant, append(number(4, 2), flagByGroup)...),
		begin(fieldRelayRequest, number(1, 2, 3, 4)...),
		begin(fieldRelay, append(number(1, 2), 1, 0)...),
		begin(fieldNewer, number(9, 9)...),
		begin(fieldSilent, number(1, 2, 3, 4)...),
		begin(fieldRetained, 0, 1, 0x75, 0x30),
		begin(fieldRan, number(1<<40)...),
		begin(fieldCluster, number(1, 2)...),
		begin(fieldSlots, number(1<<63+1)...),
		begin(fieldChallenge, number(1, 2)...), begin(fieldProof, number(1, 2)...), begin(fieldMissed, number(1, 2)...),
		begin(fieldPassedOn, 'I', 'L'),
	} {
		bodies = append(bodies, slices.Concat(hello, field))
	}
	for _, flags := range []byte{flagDirect, flagDirect | flagDirectIPv4, flagNotDirect | flagObserver} {
		bodies = append(bodies, begin(fieldHello, append([]byte{flags, 0, 100, 1, 194}, make([]byte, 16)...)...))
	}
	return bodies
}

// Questions, answers, segments, silent nodes and claims fit with the longest name.
func TestDatagramsFit(t *testing.T) {
	c := testCore(t, strings.Repeat("n", maxName))
	c.SetAuthorities([]uint64{1, 2, 3, 4})
	p := c.peer("other")
	p.from = netip.MustParseAddr("192.0.2.2")
	c.observer = false
	c.SetSlots(1)
	for range 100 {
		p.relayRequests = append(p.relayRequests, about{1, 2})
		p.relayAnswers = append(p.relayAnswers, relayEvidence{about{1, 2}, time.Second})
	}
	for i := range 2 * maxSegments {
		c.ifaces[c.iface(fmt.Sprint("eth", i))].link = true
	}
	for i := range 100 {
		c.mine.set(view.VIPID(i), view.Claim{State: view.HandingOver, Generation: 1<<63 - 1, Rank: 1<<16 - 1, Successor: strings.Repeat("s", maxName)})
	}
	silent := 0
	for _, s := range c.Tick(time.Now(), time.Hour) {
		_, body, err := parseHeader(s.Data)
		if err == nil {
			err = c.msg.parse(body)
		}
		if err != nil {
			t.Errorf("%d bytes: %v", len(s.Data), err)
		}
		silent = max(silent, len(c.msg.silent))
	}
	if silent != maxSilentEntries {
		t.Errorf("%d entries of nodes that are not received", silent)
	}
	if len(p.relayRequests)+len(p.relayAnswers) > 0 {
		t.Error("not all was requested and answered")
	}
}

func TestParse(t *testing.T) {
	var m message
	for i, body := range samples() {
		if err := m.parse(body); err != nil {
			t.Errorf("sample %d: %v", i, err)
		}
	}
	if err := m.parse(samples()[3]); err != nil || len(m.entries) != 4 || m.entries[0].claim.Generation != 1<<40 ||
		m.entries[2].claim.Successor != "node-2" || m.flags != flagLeaving || m.dead != 450*time.Millisecond {
		t.Errorf("%+v, %v", m, err)
	}
	hello := samples()[0]
	for name, body := range map[string][]byte{
		"empty":                nil,
		"no hello":             {fieldRelayRequest, 0, 0},
		"hello twice":          slices.Concat(hello, hello),
		"hello too long":       append([]byte{fieldHello, 0, 22}, append(hello[3:], 0)...),
		"cut":                  hello[:10],
		"half a field header":  slices.Concat(hello, []byte{fieldRelayRequest, 0}),
		"half a list item":     slices.Concat(hello, []byte{fieldRelayRequest, 0, 2, 1, 1}),
		"unknown field":        slices.Concat(hello, []byte{77, 0, 1, 1}),
		"no range":             slices.Concat(hello, []byte{fieldClaims, 0, 16}, make([]byte, 16)),
		"no interval":          slices.Concat([]byte{fieldHello, 0, 21, 0, 0, 0}, hello[6:]),
		"IPv4 without tunnels": slices.Concat([]byte{fieldHello, 0, 21, flagDirectIPv4}, hello[4:]),
		"IPv4 and no tunnels":  slices.Concat([]byte{fieldHello, 0, 21, flagNotDirect | flagDirectIPv4}, hello[4:]),
	} {
		if err := m.parse(body); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := m.parse(slices.Concat(hello, []byte{fieldSlots, 0, 8, 128, 0, 0, 0, 0, 0, 0, 1})); err != nil || !m.hasSlots || m.slots != 1<<63+1 {
		t.Errorf("digest %#x, %v", m.slots, err)
	}
	for kind, size := range fieldSizes {
		for _, n := range []int{size - 1, size + 1} {
			body := slices.Concat(hello, []byte{byte(kind), 0, byte(n)}, make([]byte, max(n, 0)))
			if size > 0 && kind != fieldHello && m.parse(body) == nil {
				t.Errorf("field %d of %d bytes: accepted", kind, n)
			}
		}
	}
	if err := m.parse(hello); err != nil || m.hasSlots {
		t.Errorf("a datagram without a digest has one: %v", err)
	}
}

// A datagram of another version is ignored and counted.
func TestOtherVersion(t *testing.T) {
	a := testCore(t, "a")
	d := a.finish(a.appendHello(a.begin(), 0))
	for _, other := range []byte{0, wireVersion + 1, 0xff} {
		d[2] = other
		b := testCore(t, "b")
		if reason := b.Receive(time.Unix(9, 0), time.Hour, Packet{Data: a.ring.tag(d[:len(d)-tagSize])}); reason != DropVersion || len(b.peers) > 0 {
			t.Errorf("version %d: %q, %v", other, reason, b.peers)
		}
	}
}

func TestEntriesKeep(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		e := entry{id: view.VIPID(random.Uint64()), claim: view.Claim{State: view.ClaimState(random.IntN(4))}}
		if e.claim.State != 0 {
			e.claim.Generation, e.claim.Rank = random.Int64()>>random.IntN(63), uint16(random.Uint32())
		}
		if e.claim.State == view.HandingOver {
			e.claim.Successor = string(bytes.Repeat([]byte("n"), random.IntN(maxName+1)))
		}
		b := appendEntry(nil, e)
		got, n := parseEntry(append(b, 1, 2, 3))
		if n != len(b) || got != e {
			t.Fatalf("%+v became %+v, %d of %d bytes", e, got, n, len(b))
		}
	}
}

// A replica that receives parts in any order, some of them twice or never, converges to the journal.
func TestJournalConverges(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		c := testCore(t, "a")
		var r replica
		seen := map[view.VIPID]view.Claim{}
		changed := func(id view.VIPID) { seen[id] = view.Claim{} }
		var old [][]byte
		give := func(data []byte) {
			_, body, err := parseHeader(data)
			if err != nil {
				t.Fatal(err)
			}
			var m message
			if err := m.parse(body); err != nil {
				t.Fatal(err)
			}
			r.advertisedVersion, r.advertisedDigest = max(r.advertisedVersion, m.version), c.mine.digest
			if m.hasClaims {
				r.apply(m.after, m.upTo, m.entries, changed)
			}
			r.reconcile(changed)
		}
		for range 300 {
			switch random.IntN(4) {
			case 0, 1:
				claim := view.Claim{}
				if random.IntN(3) > 0 {
					claim = view.Claim{State: view.Held, Generation: random.Int64N(5)}
				}
				c.mine.set(view.VIPID(random.IntN(150)), claim)
			case 2:
				b, _ := c.appendClaims(c.appendHello(c.begin(), 0), uint64(random.IntN(int(c.mine.version)+1)))
				old = append(old, slices.Clone(c.finish(b)))
			default:
				if len(old) > 0 {
					give(old[random.IntN(len(old))])
				}
			}
			if random.IntN(50) == 0 {
				c.mine.compact()
			}
		}
		for i := 0; !(r.version == c.mine.version && r.digest == c.mine.digest); i++ {
			if i > 100 {
				t.Fatalf("at version %d of %d after %d requests", r.version, c.mine.version, i)
			}
			b, _ := c.appendClaims(c.appendHello(c.begin(), 0), r.next())
			give(slices.Clone(c.finish(b)))
		}
		want := map[view.VIPID]view.Claim{}
		for id, advertised := range c.mine.at {
			if advertised.claim.State != 0 {
				want[id] = advertised.claim
			}
		}
		if !reflect.DeepEqual(r.claims, want) && len(want)+len(r.claims) > 0 {
			t.Fatalf("got %v\nwant %v", r.claims, want)
		}
	}
}

// Tombstones are deleted after a while; a node that has missed them detects that by the digest.
func TestTombstonesEnd(t *testing.T) {
	c := testCore(t, "a")
	var r replica
	none := func(view.VIPID) {}
	give := func() {
		b, _ := c.appendClaims(c.appendHello(c.begin(), 0), r.next())
		var m message
		_, body, _ := parseHeader(c.finish(b))
		if err := m.parse(body); err != nil {
			t.Fatal(err)
		}
		r.advertisedVersion, r.advertisedDigest = m.version, m.digest
		if m.hasClaims {
			r.apply(m.after, m.upTo, m.entries, none)
		}
		r.reconcile(none)
	}
	c.mine.set(1<<40, view.Claim{State: view.Held})
	give()
	c.mine.set(1<<40, view.Claim{})
	for i := range 100 * tombstones {
		c.mine.set(view.VIPID(i), view.Claim{State: view.Held})
		c.mine.set(view.VIPID(i), view.Claim{})
	}
	if len(c.mine.at) > 4*tombstones || len(c.mine.order) > 4*tombstones {
		t.Errorf("%d claims and %d changes are kept", len(c.mine.at), len(c.mine.order))
	}
	give()
	for i := 0; !r.synced(); i++ {
		if i > 100 {
			t.Fatal("it does not converge")
		}
		give()
	}
	if len(r.claims) != 0 {
		t.Errorf("%v is left", r.claims)
	}
}

func TestWindow(t *testing.T) {
	var w window
	accepted := map[uint64]bool{}
	random := rand.New(rand.NewPCG(5, 6))
	top := uint64(0)
	for range 100000 {
		n := 1 + top + uint64(random.IntN(100)) - min(top, 80)
		want := !accepted[n] && (n > top || top-n < 64)
		if got := w.fresh(n); got != want {
			t.Fatalf("%d at %d: %v, want %v", n, top, got, want)
		}
		if want {
			w.add(n)
			accepted[n], top = true, max(top, n)
		}
	}
}

// FuzzReceive feeds bodies with a right tag: the only input that reaches the parser, from a faulty node.
func FuzzReceive(f *testing.F) {
	for _, body := range samples() {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a, b := testCore(t, "a"), testCore(t, "b")
		if len(body) > MaxDatagram-headerSize-1-tagSize {
			return
		}
		now := time.Unix(1000, 0)
		b.Tick(now, raw())
		d := a.ring.tag(append(a.begin(), body...))
		for i := range 2 {
			b.Receive(now, raw(), Packet{Iface: "eth0", OnLink: i == 0, Data: d})
		}
		for range 60 {
			now = now.Add(20 * time.Millisecond)
			for _, s := range b.Tick(now, raw()) {
				if len(s.Data) > MaxDatagram {
					t.Fatalf("a datagram of %d bytes", len(s.Data))
				}
				_, body, err := parseHeader(s.Data)
				if err != nil || b.msg.parse(body) != nil {
					t.Fatalf("it sends what it would not take: %v", err)
				}
			}
			b.Members()
		}
	})
}

// FuzzDatagram feeds complete datagrams, as any host on the segment can send them.
func FuzzDatagram(f *testing.F) {
	c := testCore(f, "a")
	f.Add(slices.Clone(c.finish(c.appendHello(c.begin(), 0))))
	f.Fuzz(func(t *testing.T, d []byte) {
		b := testCore(t, "b")
		if reason := b.Receive(time.Unix(1, 0), time.Hour, Packet{Data: d}); reason == Accepted && !bytes.Contains(d, []byte("IL")) {
			t.Fatal("accepted")
		}
	})
}
