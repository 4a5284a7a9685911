package forwarding

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
)

// randomEndpoints returns n endpoints on nodes 0 to nodes-1.
func randomEndpoints(r *rand.Rand, n, nodes int) map[netip.AddrPort]uint16 {
	out := map[netip.AddrPort]uint16{}
	for len(out) < n {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(r.UintN(256)), byte(r.UintN(256))}), 8080)
		out[at] = uint16(r.IntN(nodes))
	}
	return out
}

func randomKey(r *rand.Rand) ipvs.Key {
	return ipvs.Key{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(r.UintN(256))}), Protocol: ipvs.TCP, Port: uint16(1 + r.UintN(1<<16-1))}
}

// The hash never changes: speakers of two versions agree during an upgrade.
func TestSlotsAreConstant(t *testing.T) {
	sum := fnv.New64a()
	for _, c := range []struct{ virtual, pods string }{{"203.0.113.4:80", "10.244.0.1:8080"}, {"[2001:db8::4]:443", "[2001:db8:1::1]:8443"}} {
		at, pod := netip.MustParseAddrPort(c.virtual), netip.MustParseAddrPort(c.pods)
		for _, protocol := range []ipvs.Protocol{ipvs.TCP, ipvs.UDP} {
			endpoints := map[netip.AddrPort]uint16{}
			for i := range 5 {
				endpoints[pod] = uint16(i)
				pod = netip.AddrPortFrom(pod.Addr().Next(), pod.Port())
			}
			for _, node := range slotsOf(ipvs.Key{Addr: at.Addr(), Protocol: protocol, Port: at.Port()}, endpoints) {
				sum.Write([]byte{byte(node)})
			}
		}
	}
	if got, want := sum.Sum64(), uint64(0xf826fc9f7be72c51); got != want {
		t.Errorf("hash of the tables %#x, want %#x", got, want)
	}
}

// Nodes with other indexes, as each node assigns its own, choose the same endpoints in any order.
func TestSlotsAreEqualOnAllNodes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		key, endpoints := randomKey(r), randomEndpoints(r, 1+r.IntN(30), 8)
		other := r.Perm(8)
		renamed := map[netip.AddrPort]uint16{}
		for at, node := range endpoints {
			renamed[at] = uint16(other[node])
		}
		a, b := slotsOf(key, endpoints), slotsOf(key, renamed)
		for slot := range a {
			if int(b[slot]) != other[a[slot]] {
				t.Fatalf("slot %d: node %d here, %d there", slot, other[a[slot]], b[slot])
			}
		}
	}
}

// One more endpoint takes slots from others, and changes nothing between them; without it they have the same slots as
// before.
func TestSlotsMoveMinimally(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	moved, tables := 0, 300
	for range tables {
		key, endpoints := randomKey(r), randomEndpoints(r, 9, 9)
		before := slotsOf(key, endpoints)
		more := randomEndpoints(r, 1, 1)
		for at := range more {
			if _, twice := endpoints[at]; twice {
				continue
			}
			endpoints[at] = 9
			after := slotsOf(key, endpoints)
			for slot := range after {
				if after[slot] == before[slot] {
					continue
				}
				if moved++; after[slot] != 9 {
					t.Fatalf("slot %d moves from node %d to %d, which has no new endpoint", slot, before[slot], after[slot])
				}
			}
			delete(endpoints, at)
			if again := slotsOf(key, endpoints); *again != *before {
				t.Fatal("the removal of the endpoint does not restore the slots")
			}
		}
	}
	share := float64(moved) / float64(tables*ipvs.NumSlots)
	if math.Abs(share-0.1) > 0.01 {
		t.Errorf("the tenth endpoint takes %.3f of the slots, want 0.1", share)
	}
}

// The slots of an endpoint follow a binomial distribution: the chi-square statistic of many tables is as expected.
// Services with the same endpoints differ.
func TestSlotsAreEven(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{2, 3, 6, 20} {
		endpoints := map[netip.AddrPort]uint16{}
		for i := range n { // consecutive addresses, as a CNI assigns them
			endpoints[netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i % 3), byte(2 + i/3)}), 8080)] = uint16(i)
		}
		const tables = 500
		sum, total := 0.0, make([]float64, n)
		for range tables {
			count := make([]float64, n)
			for _, node := range slotsOf(randomKey(r), endpoints) {
				count[node]++
				total[node]++
			}
			expected := float64(ipvs.NumSlots) / float64(n)
			for _, c := range count {
				sum += (c - expected) * (c - expected) / expected
			}
		}
		freedom := float64(tables * (n - 1))
		if deviation := (sum - freedom) / math.Sqrt(2*freedom); math.Abs(deviation) > 4 {
			t.Errorf("%d endpoints: chi-square %.0f, want %.0f (%.1f standard deviations)", n, sum, freedom, deviation)
		}
		for node, c := range total {
			p := 1 / float64(n)
			all := float64(tables * ipvs.NumSlots)
			if deviation := (c - all*p) / math.Sqrt(all*p*(1-p)); math.Abs(deviation) > 4.5 {
				t.Errorf("%d endpoints: node %d has %.0f slots of %.0f (%.1f standard deviations)", n, node, c, all, deviation)
			}
		}
	}
}

func TestBefore(t *testing.T) {
	fill := func(node uint16) *ipvs.Slots {
		out := &ipvs.Slots{}
		for i := range out {
			out[i] = node
		}
		return out
	}
	with := func(s *ipvs.Slots, slot int, node uint16) *ipvs.Slots {
		out := *s
		out[slot] = node
		return &out
	}
	none := func(uint16) bool { return false }
	first := fill(1)
	before := beforeOf(first, nil, nil, none)
	if *before != *first {
		t.Error("without history there is a second chance")
	}
	second := with(first, 7, 2)
	before = beforeOf(second, first, before, none)
	if *before != *first {
		t.Errorf("slot 7 was of node 1: %d", before[7])
	}
	third := with(second, 9, 3)
	before = beforeOf(third, second, before, none)
	if before[7] != 1 || before[9] != 1 {
		t.Errorf("another slot changed: %d, %d", before[7], before[9])
	}
	if again := beforeOf(third, third, before, none); again != before {
		t.Error("nothing changed, and it is another table")
	}
	fourth := with(third, 7, 4)
	before = beforeOf(fourth, third, before, none)
	if before[7] != 2 || before[9] != 1 {
		t.Errorf("slot 7 was of node 2: %d, %d", before[7], before[9])
	}
	before = beforeOf(fourth, fourth, before, func(node uint16) bool { return node == 2 })
	if before[7] != 4 || before[9] != 1 {
		t.Errorf("node 2 is gone: %d, %d", before[7], before[9])
	}
}

// Any endpoints: only nodes that have one get slots, the order of the endpoints does not matter, and without one of
// them only its slots move.
func FuzzSlots(f *testing.F) {
	f.Add(uint64(1), uint16(80), uint8(3))
	f.Add(uint64(0), uint16(0), uint8(1))
	f.Fuzz(func(t *testing.T, seed uint64, port uint16, n uint8) {
		r := rand.New(rand.NewPCG(seed, uint64(port)))
		key := ipvs.Key{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(seed)}), Protocol: ipvs.UDP, Port: port}
		endpoints, of := map[netip.AddrPort]uint16{}, map[uint16]netip.AddrPort{}
		for i := range uint16(n)%40 + 1 { // a node for each endpoint
			addr := [16]byte{0x20, 1, 0xd, 0xb8, 15: byte(r.Uint32())}
			at := netip.AddrPortFrom(netip.AddrFrom16(addr), uint16(r.Uint32()))
			if _, twice := endpoints[at]; !twice {
				endpoints[at], of[i] = i, at
			}
		}
		before := slotsOf(key, endpoints)
		for _, node := range before {
			if _, is := of[node]; !is {
				t.Fatalf("node %d has a slot and no endpoint", node)
			}
		}
		if len(endpoints) == 1 {
			return
		}
		gone := before[r.IntN(ipvs.NumSlots)]
		delete(endpoints, of[gone])
		for slot, node := range slotsOf(key, endpoints) {
			if (node != before[slot]) != (before[slot] == gone) {
				t.Fatalf("slot %d moved from %d to %d when %d was removed", slot, before[slot], node, gone)
			}
		}
	})
}

func BenchmarkSlots(b *testing.B) {
	for _, n := range []int{3, 30, 300} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(7, 8))
			key, endpoints := randomKey(r), randomEndpoints(r, n, n)
			b.ReportAllocs()
			for b.Loop() {
				slotsOf(key, endpoints)
			}
		})
	}
}
