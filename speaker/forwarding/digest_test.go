package forwarding

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// The digest never changes: speakers of two versions compare it during an upgrade.
func TestDigestIsConstant(t *testing.T) {
	key := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}
	slots := &ipvs.Slots{}
	for slot := range slots {
		slots[slot] = uint16(slot % 3)
	}
	names := []string{"a", "b", "c"}
	for byClient, want := range map[bool]uint64{false: 0xdeb540b0fc35bcfc, true: 0x7e1e7fdf107c1259} {
		if got := digestOf(key, ipvs.Directed{Slots: slots, ByClient: byClient}, names); got != want {
			t.Errorf("by client %v: digest %#x, want %#x", byClient, got, want)
		}
	}
}

var digestNodes = []string{"n0", "n1", "n2", "n3", "n4"}

// randomDirect returns a View with Services that are forwarded directly. All nodes can use tunnels.
func randomDirect(r *rand.Rand) *view.View {
	v := view.New()
	v.Members.Peers = map[string]view.Member{}
	for i, name := range digestNodes {
		v.Members.Peers[name] = view.Member{Alive: true, Direct: true}
		if i < 3 || r.IntN(2) == 0 { // the first three plan
			v.Nodes[name] = view.Node{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})}}
		}
	}
	nodes := slices.Sorted(maps.Keys(v.Nodes))
	for i := range 6 {
		if r.IntN(4) == 0 {
			continue
		}
		key := pools.ServiceKey{Namespace: "default", Name: fmt.Sprint("s", i)}
		svc := view.Service{
			Addresses:  []view.Address{{IP: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), Pool: "main"}},
			Ports:      []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 80}},
			Forwarding: view.Direct, Affinity: uint32(r.IntN(2)), Local: r.IntN(2) == 0,
		}
		if r.IntN(3) == 0 { // an address that two Services claim
			svc.Addresses[0].IP, svc.Created = netip.AddrFrom4([4]byte{203, 0, 113, 99}), int64(r.IntN(2))
		}
		slice := view.Slice{Ports: []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 8080}}}
		for range r.IntN(5) {
			slice.Endpoints = append(slice.Endpoints, view.Endpoint{
				Addr: netip.AddrFrom4([4]byte{10, 244, byte(i), byte(r.UintN(8))}), Node: nodes[r.IntN(len(nodes))], Ready: true, Serving: true,
			})
		}
		v.Services[key], v.Slices[key] = svc, map[string]view.Slice{"s": slice}
	}
	return v
}

// reach changes a View to another one, in random order with plans between, and returns the last plan.
func reach(r *rand.Rand, p *Planner, from, to *view.View) Forwarding {
	type change func() view.Touched
	var changes []change
	for _, name := range digestNodes {
		changes = append(changes, func() view.Touched {
			if n, exists := to.Nodes[name]; exists {
				from.Nodes[name] = n
			} else {
				delete(from.Nodes, name)
			}
			return view.Touched{Nodes: map[string]struct{}{name: {}}}
		})
	}
	for i := range 6 {
		key := pools.ServiceKey{Namespace: "default", Name: fmt.Sprint("s", i)}
		touched := view.Touched{Services: map[pools.ServiceKey]struct{}{key: {}}, Slices: map[pools.ServiceKey]struct{}{key: {}}}
		changes = append(changes, func() view.Touched {
			if svc, exists := to.Services[key]; exists {
				from.Services[key] = svc
			} else {
				delete(from.Services, key)
			}
			return touched
		}, func() view.Touched {
			if slices, exists := to.Slices[key]; exists {
				from.Slices[key] = slices
			} else {
				delete(from.Slices, key)
			}
			return touched
		})
	}
	now := time.Unix(1000, 0)
	f, _ := p.Plan(from, view.Touched{All: true}, now)
	for _, i := range r.Perm(len(changes)) {
		now = now.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
		f, _ = p.Plan(from, changes[i](), now)
	}
	return f
}

// named returns the slots of a plan by the names of their nodes.
func named(p *Planner, f Forwarding) map[ipvs.Key]string {
	out := map[ipvs.Key]string{}
	for key, d := range f.Direct.Virtuals {
		text := fmt.Sprint(d.ByClient)
		for _, node := range d.Slots {
			text += " " + p.nodes.names[node]
		}
		out[key] = text
	}
	return out
}

// Nodes with the same View have the same slots and so the same digest, whatever the order in which they learned of it
// and the indexes that they gave to the nodes. Other slots have another digest.
func TestDigest(t *testing.T) {
	type table struct {
		slots  map[ipvs.Key]string
		digest uint64
	}
	var tables []table
	for seed := range uint64(100) {
		final := randomDirect(rand.New(rand.NewPCG(seed, 1)))
		for i, name := range digestNodes[:3] {
			r := rand.New(rand.NewPCG(seed, uint64(2+i)))
			p := New(name, false, Options{})
			f := reach(r, p, randomDirect(r), final)
			now := table{named(p, f), f.SlotsDigest}
			tables = append(tables, now)
			if first := tables[len(tables)-1-i]; !maps.Equal(now.slots, first.slots) || now.digest != first.digest {
				t.Fatalf("seed %d: node %s has %#x of %v\nwant %#x of %v", seed, name, now.digest, now.slots, first.digest, first.slots)
			}
			fresh, _ := New(name, false, Options{}).Plan(final, view.Touched{All: true}, time.Unix(1000, 0))
			if fresh.SlotsDigest != now.digest {
				t.Fatalf("seed %d: node %s has %#x, from nothing %#x", seed, name, now.digest, fresh.SlotsDigest)
			}
		}
	}
	distinct := 0
	for i, a := range tables {
		for _, b := range tables[:i] {
			if maps.Equal(a.slots, b.slots) != (a.digest == b.digest) {
				t.Fatalf("%#x of %v\nand %#x of %v", a.digest, a.slots, b.digest, b.slots)
			}
			if a.digest != b.digest {
				distinct++
			}
		}
	}
	if distinct < 1000 {
		t.Errorf("only %d pairs differ", distinct)
	}
}

// One slot of one virtual server, its hash, its node's name or its key make another digest.
func TestDigestDiffers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	names := []string{"a", "b", "c", "d"}
	for range 200 {
		key, d := randomKey(r), ipvs.Directed{Slots: slotsOf(randomKey(r), randomSpread(r, 6, 3), names)}
		same := digestOf(key, d, names)
		slots := *d.Slots
		slots[r.IntN(len(slots))] = 3
		renamed := slices.Clone(names)
		renamed[d.Slots[0]] = "e"
		for what, other := range map[string]uint64{
			"slot": digestOf(key, ipvs.Directed{Slots: &slots}, names), "hash": digestOf(key, ipvs.Directed{Slots: d.Slots, ByClient: true}, names),
			"name": digestOf(key, d, renamed), "protocol": digestOf(ipvs.Key{Addr: key.Addr, Protocol: ipvs.UDP, Port: key.Port}, d, names),
			"port": digestOf(ipvs.Key{Addr: key.Addr, Protocol: key.Protocol, Port: key.Port + 1}, d, names),
		} {
			if other == same {
				t.Errorf("another %s has the same digest", what)
			}
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	names := make([]string, 30)
	for i := range names {
		names[i] = fmt.Sprintf("node-%d.example.com", i)
	}
	key, d := randomKey(r), ipvs.Directed{Slots: slotsOf(randomKey(r), randomSpread(r, 30, 30), names)}
	b.ReportAllocs()
	for b.Loop() {
		digestOf(key, d, names)
	}
}
