package nftlb_test

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
	"github.com/ironlb/ironlb/ipvs/nftlb"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

const idle = 1 << 20

var web = ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}

func real(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 8080)
}

// server returns a virtual server whose real servers have these weights.
func server(scheduler string, weights ...uint32) ipvs.VirtualServer {
	vs := ipvs.VirtualServer{Settings: ipvs.Settings{Scheduler: scheduler}, RealServers: make(map[netip.AddrPort]ipvs.RealServer)}
	for i, weight := range weights {
		vs.RealServers[real(i+1)] = ipvs.RealServer{Weight: weight}
	}
	return vs
}

// shares counts the selectable slots of each real server.
func shares(at map[uint32]netip.AddrPort) []int {
	counts := make(map[netip.AddrPort]int)
	for slot, r := range at {
		if slot < idle {
			counts[r]++
		}
	}
	var list []int
	for _, r := range slices.SortedFunc(maps.Keys(counts), netip.AddrPort.Compare) {
		list = append(list, counts[r])
	}
	return list
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		vs   ipvs.VirtualServer
		want []int
	}{
		{server("rr"), nil},
		{server("rr", 0, 0), nil},
		{server("rr", 1, 7, 0), []int{1, 1}},
		{server("wrr", 100, 100), []int{1, 1}},
		{server("wlc", 10, 30, 0), []int{1, 3}},
		{server("wrr", 1, ipvs.MaxWeight), []int{1, 256}},
		{server("wrr", 333, 667), []int{85, 171}},
		{server("sh", 2, 4), []int{1, 2}},
		{server("lc", 1, 2, 0), []int{1, 2}},
		{server("mh", 5), []int{251}},
	} {
		slots, at := nftlb.Lay(0, nil, c.vs)
		if got := shares(at); !slices.Equal(got, c.want) {
			t.Errorf("%v %v: shares %v, want %v", c.vs.Settings, c.vs.RealServers, got, c.want)
		}
		total := 0
		for _, n := range c.want {
			total += n
		}
		if slots != total {
			t.Errorf("%v %v: %d slots, want %d", c.vs.Settings, c.vs.RealServers, slots, total)
		}
	}
}

// TestConsistent: mh moves only the slots of the real server that is deleted or added, and shares are near the weights.
func TestConsistent(t *testing.T) {
	slots, five := nftlb.Lay(0, nil, server("mh", 1, 1, 1, 1, 1))
	_, four := nftlb.Lay(slots, five, server("mh", 1, 1, 1, 1))
	for slot, r := range four {
		if slot < idle && five[slot] != r && five[slot] != real(5) {
			t.Errorf("slot %d moved from %v to %v", slot, five[slot], r)
		}
	}
	_, fresh := nftlb.Lay(0, nil, server("mh", 1, 1, 1, 1))
	if !maps.Equal(four, fresh) {
		t.Error("the slots depend on what was before, so nodes would differ")
	}
	for _, n := range shares(five) {
		if n < 35 || n > 66 {
			t.Errorf("shares %v, want about 50 each", shares(five))
		}
	}
	_, weighted := nftlb.Lay(0, nil, server("mh", 1, 3))
	if n := shares(weighted)[0]; n < 45 || n > 81 {
		t.Errorf("shares %v, want a quarter and the rest", shares(weighted))
	}
}

// TestLayChangesLittle: for any history all real servers have a slot, and the selectable slots have no gap. Laying
// again changes nothing. One real server more or less moves no more slots than it gets or gives up.
func TestLayChangesLittle(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	schedulers := []string{"rr", "wrr", "sh", "lblcr"}
	vs := server("rr", 1, 1, 1)
	slots, at := nftlb.Lay(0, nil, vs)
	for range 2000 {
		next := ipvs.VirtualServer{Settings: vs.Settings, RealServers: maps.Clone(vs.RealServers)}
		only := 0 // real servers are added or deleted, nothing else changes
		switch n := real(1 + r.IntN(12)); r.IntN(4) {
		case 0:
			next.Scheduler = schedulers[r.IntN(len(schedulers))]
		case 1:
			next.RealServers[n] = ipvs.RealServer{Weight: uint32(r.IntN(4))}
		case 2:
			if _, exists := next.RealServers[n]; exists || next.Scheduler != "rr" {
				continue
			}
			next.RealServers[n], only = ipvs.RealServer{Weight: 1}, 1
		case 3:
			if next.Scheduler == "rr" {
				only = 2
			}
			delete(next.RealServers, n)
		}
		nextSlots, nextAt := nftlb.Lay(slots, at, next)
		moved := 0
		for slot, was := range at {
			if is, stays := nextAt[slot]; stays && is != was {
				moved++
			}
		}
		if only > 0 && moved > only-1 {
			t.Fatalf("%v to %v: %d slots moved", at, nextAt, moved)
		}
		for slot := range uint32(nextSlots) {
			if !nextAt[slot].IsValid() {
				t.Fatalf("slot %d of %d is empty: %v", slot, nextSlots, nextAt)
			}
		}
		placed := make(map[netip.AddrPort]bool)
		for _, n := range nextAt {
			placed[n] = true
		}
		if len(placed) != len(next.RealServers) {
			t.Fatalf("%d of %d real servers have a slot", len(placed), len(next.RealServers))
		}
		if _, again := nftlb.Lay(nextSlots, nextAt, next); !maps.Equal(again, nextAt) {
			t.Fatalf("laid again %v becomes %v", nextAt, again)
		}
		vs, slots, at = next, nextSlots, nextAt
	}
}

// FuzzSettings: a written comment is parsed back, and no other text is accepted.
func FuzzSettings(f *testing.F) {
	f.Add("rr", uint32(0), uint32(0))
	f.Add("mh", uint32(0x19), uint32(10800))
	f.Fuzz(func(t *testing.T, scheduler string, flags, timeout uint32) {
		want := ipvs.Settings{Scheduler: scheduler, Flags: ipvs.Flags(flags) &^ ipvs.Hashed}
		if want.Flags&ipvs.Persistent != 0 {
			want.Timeout = timeout
		}
		got, ok := nftlb.ParseSettings(want.String())
		if ok && got != want {
			t.Errorf("%v is read as %v", want, got)
		}
		if !ok && (scheduler == "rr" || scheduler == "mh") {
			t.Errorf("%v is not read", want)
		}
	})
}

// TestParse: the affinity that nft lists is read.
func TestParse(t *testing.T) {
	if n, err := nftlb.Parse([]byte(affinityList)); n != 1 || err != nil {
		t.Errorf("%d entries, error %v; want 1", n, err)
	}
}

const affinityList = `{"nftables":[{"map":{"name":"affinity","elem":[` +
	`[{"elem":{"val":{"concat":["192.0.2.9","203.0.113.4",6,80]},"timeout":9,"expires":3}},{"concat":["192.0.2.1",8080]}]]}}]}`

// FuzzParse: no output of nft makes the parser fail.
func FuzzParse(f *testing.F) {
	f.Add([]byte(affinityList))
	f.Add([]byte(`{"nftables":[{"set":{"name":"pods","elem":[{"prefix":{"addr":"192.0.2.0","len":24}},{"range":["192.0.2.1","192.0.2.2"]}]}}]}`))
	f.Fuzz(func(t *testing.T, out []byte) { _, _ = nftlb.Parse(out) })
}

// FuzzElements: no element of another program makes the driver fail.
func FuzzElements(f *testing.F) {
	f.Add(uint8(0), []byte{203, 0, 113, 4, 6, 0, 0, 0, 0, 80, 0, 0}, []byte(nil), "rr", "random-1")
	f.Add(uint8(1), []byte{203, 0, 113, 4, 0, 80, 0, 0, 0, 0, 0, 0}, []byte{192, 0, 2, 1, 0, 80, 0, 0}, "Masq 1", "")
	f.Fuzz(func(t *testing.T, set uint8, key, value []byte, comment, chain string) {
		e := nftbatch.Element{Key: key, Value: value, Comment: comment, Chain: chain}
		for family := range nftwatch.NumFamilies {
			nftlb.ParseElement(family, nftlb.ElementSets[int(set)%len(nftlb.ElementSets)], e)
		}
	})
}
