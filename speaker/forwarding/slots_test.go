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

// randomSpread returns n endpoints on nodes 0 to nodes-1.
func randomSpread(r *rand.Rand, n, nodes int) map[uint16]int {
	out := map[uint16]int{}
	for range n {
		out[uint16(r.IntN(nodes))]++
	}
	return out
}

// randomNames returns names of nodes by their index.
func randomNames(r *rand.Rand, nodes int) (names []string) {
	for i := range nodes {
		names = append(names, fmt.Sprintf("node-%d-%x", i, r.Uint32()))
	}
	return names
}

func randomKey(r *rand.Rand) ipvs.Key {
	return ipvs.Key{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(r.UintN(256))}), Protocol: ipvs.TCP, Port: uint16(1 + r.UintN(1<<16-1))}
}

// The hash never changes: speakers of two versions agree during an upgrade.
func TestSlotsAreConstant(t *testing.T) {
	sum := fnv.New64a()
	names := []string{"a", "worker-1", "worker-2", "node.example.com"}
	for _, addr := range []string{"203.0.113.4", "203.0.113.5", "2001:db8::4", "2001:db8::5"} {
		key := ipvs.Key{Addr: netip.MustParseAddr(addr), Protocol: ipvs.TCP, Port: 80}
		for _, node := range slotsOf(key, map[uint16]int{0: 1, 1: 2, 2: 3, 3: 1}, names) {
			sum.Write([]byte{byte(node)})
		}
	}
	if got, want := sum.Sum64(), uint64(0x7e26a499f47df2f3); got != want {
		t.Errorf("hash of the tables %#x, want %#x", got, want)
	}
}

// Nodes with other indexes, as each node assigns its own, choose the same nodes.
func TestSlotsAreEqualOnAllNodes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		key, names, spread := randomKey(r), randomNames(r, 8), randomSpread(r, 1+r.IntN(30), 8)
		other, renamed, there := r.Perm(8), map[uint16]int{}, make([]string, 8)
		for node, n := range spread {
			renamed[uint16(other[node])] = n
		}
		for node, name := range names {
			there[other[node]] = name
		}
		a, b := slotsOf(key, spread, names), slotsOf(key, renamed, there)
		for slot := range a {
			if int(b[slot]) != other[a[slot]] {
				t.Fatalf("slot %d: node %d here, %d there", slot, other[a[slot]], b[slot])
			}
		}
	}
}

// Virtual servers with the same numbers of endpoints on the same nodes share a few tables, so that the nodes' tables
// stay small: all ports of an address one.
func TestSlotsAreShared(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	names, spread := randomNames(r, 3), map[uint16]int{0: 2, 1: 2, 2: 1}
	tables := map[ipvs.Slots]struct{}{}
	for range 1000 {
		key := randomKey(r)
		slots := slotsOf(key, spread, names)
		tables[*slots] = struct{}{}
		key.Port, key.Protocol = key.Port+1, ipvs.UDP
		if again := slotsOf(key, spread, names); *again != *slots {
			t.Errorf("another port of %v has other slots", key.Addr)
		}
	}
	if len(tables) != variants {
		t.Errorf("%d tables of slots, want %d", len(tables), variants)
	}
}

// One more endpoint takes slots from others, and changes nothing between them; without it they have the same slots as
// before. So does a second one of a node.
func TestSlotsMoveMinimally(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	moved, tables := 0, 300
	for i := range tables {
		key, names, spread := randomKey(r), randomNames(r, 10), randomSpread(r, 9, 9)
		before := slotsOf(key, spread, names)
		grows := uint16(9)
		if i%2 == 1 {
			grows = uint16(r.IntN(9))
		}
		had := spread[grows]
		spread[grows]++
		after := slotsOf(key, spread, names)
		for slot := range after {
			if after[slot] == before[slot] {
				continue
			}
			if moved++; after[slot] != grows {
				t.Fatalf("slot %d moves from node %d to %d, which has no new endpoint", slot, before[slot], after[slot])
			}
		}
		moved += had * ipvs.NumSlots / 90 // of those it takes, these were the node's: a tenth, of its share of nine
		if spread[grows]--; had == 0 {
			delete(spread, grows)
		}
		if again := slotsOf(key, spread, names); *again != *before {
			t.Fatal("the removal of the endpoint does not restore the slots")
		}
	}
	share := float64(moved) / float64(tables*ipvs.NumSlots)
	if math.Abs(share-0.1) > 0.01 {
		t.Errorf("the tenth endpoint takes %.3f of the slots, want 0.1", share)
	}
}

// The slots of a node follow a binomial distribution: the chi-square statistic of many tables is as expected.
func TestSlotsAreEven(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{2, 3, 6, 20} {
		spread := map[uint16]int{}
		for i := range n {
			spread[uint16(i)] = 1
		}
		const tables = 500
		sum, total := 0.0, make([]float64, n)
		for range tables {
			count := make([]float64, n)
			for _, node := range slotsOf(randomKey(r), spread, randomNames(r, n)) {
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
			t.Errorf("%d nodes: chi-square %.0f, want %.0f (%.1f standard deviations)", n, sum, freedom, deviation)
		}
		for node, c := range total {
			p := 1 / float64(n)
			all := float64(tables * ipvs.NumSlots)
			if deviation := (c - all*p) / math.Sqrt(all*p*(1-p)); math.Abs(deviation) > 4.5 {
				t.Errorf("%d nodes: node %d has %.0f slots of %.0f (%.1f standard deviations)", n, node, c, all, deviation)
			}
		}
	}
}

// A node with two endpoints gets twice the slots of one with one.
func TestSlotsFollowEndpoints(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	const tables = 500
	count := 0
	for range tables {
		for _, node := range slotsOf(randomKey(r), map[uint16]int{0: 1, 1: 2}, randomNames(r, 2)) {
			count += int(node)
		}
	}
	if share := float64(count) / (tables * ipvs.NumSlots); math.Abs(share-2.0/3) > 0.01 {
		t.Errorf("two of three endpoints have %.3f of the slots", share)
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

// Any endpoints: only nodes that have one get slots, and without one of them only its slots move.
func FuzzSlots(f *testing.F) {
	f.Add(uint64(1), uint16(80), uint8(3))
	f.Add(uint64(0), uint16(0), uint8(1))
	f.Fuzz(func(t *testing.T, seed uint64, port uint16, n uint8) {
		r := rand.New(rand.NewPCG(seed, uint64(port)))
		key := ipvs.Key{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(seed)}), Protocol: ipvs.UDP, Port: port}
		nodes := int(n)%40 + 1
		names, spread := randomNames(r, nodes), map[uint16]int{}
		for i := range nodes {
			spread[uint16(i)] = 1 + r.IntN(3)
		}
		before := slotsOf(key, spread, names)
		for _, node := range before {
			if spread[node] == 0 {
				t.Fatalf("node %d has a slot and no endpoint", node)
			}
		}
		if len(spread) == 1 {
			return
		}
		gone := before[r.IntN(ipvs.NumSlots)]
		delete(spread, gone)
		for slot, node := range slotsOf(key, spread, names) {
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
			key, names, spread := randomKey(r), randomNames(r, n), randomSpread(r, n, n)
			b.ReportAllocs()
			for b.Loop() {
				slotsOf(key, spread, names)
			}
		})
	}
}
