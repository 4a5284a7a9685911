package placement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// random applies one random change to the fixture.
func (f *fixture) random(r *rand.Rand) {
	node := fmt.Sprintf("n%d", r.IntN(7))
	unit := fmt.Sprintf("v%d", r.IntN(25))
	_, there := f.ready[node]
	switch r.IntN(12) {
	case 0, 1:
		f.ready[node], f.alive[node] = true, true
	case 2:
		if there {
			f.ready[node] = !f.ready[node]
		}
	case 3:
		if there {
			f.alive[node] = !f.alive[node]
		}
	case 4:
		delete(f.ready, node)
		delete(f.alive, node)
	case 5:
		delete(f.eligible, unit)
		delete(f.lists, unit)
	case 6:
		f.eligible[unit] = []string{node, fmt.Sprintf("n%d", r.IntN(7)), fmt.Sprintf("n%d", r.IntN(7))}
	case 7:
		f.cordoned[node] = !f.cordoned[node]
	case 8:
		f.weights = map[string]int{node: r.IntN(3) * 10, "n0": r.IntN(3) * 10}
		maps.DeleteFunc(f.weights, func(_ string, n int) bool { return n == 0 })
	default:
		f.eligible[unit] = nil
	}
}

// TestProperties checks properties that hold in any cluster after any history.
func TestProperties(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := newFixture(t)
		if seed%2 == 1 { // with limited lists
			f.placer.most, f.all = 2+r.IntN(4), map[string]bool{"v1": true, "v7": true}
		}
		for step := range 60 {
			f.random(r)
			if f.placer.most > 0 && r.IntN(4) == 0 {
				f.able = map[string]bool{}
				for n := range 7 {
					f.able[fmt.Sprintf("n%d", n)] = r.IntN(3) > 0
				}
			}
			f.elect()
			exact := r.IntN(2) == 0
			before, held := maps.Clone(f.lists), maps.Clone(f.holds)
			lists := f.place(exact)
			units, nodes := f.input()
			if again := (&Placer{most: f.placer.most}).Place(units, nodes, exact); !reflect.DeepEqual(lists, again) {
				t.Fatalf("seed %d step %d: the order of the input or what was read before matters:\n%v\n%v", seed, step, lists, again)
			}
			for _, l := range lists {
				f.check(l, before[l.Unit])
				f.lists[l.Unit] = l.Nodes
			}
			for _, l := range f.place(exact) {
				if l.Reason != Unchanged {
					t.Fatalf("seed %d step %d: placed again, %s changed to %v (%s)", seed, step, l.Unit, l.Nodes, l.Reason)
				}
			}
			f.elect()
			for unit, h := range held {
				if now := f.holds[unit]; now != h && h != "" && f.alive[h] && slices.Contains(f.lists[unit], h) {
					t.Errorf("seed %d step %d: %s moved from %s to %s without need", seed, step, unit, h, now)
				}
			}
			if t.Failed() {
				t.Fatalf("seed %d step %d", seed, step)
			}
		}
	}
}

// check verifies one list against the previous one.
func (f *fixture) check(l List, before []string) {
	t := f.t
	t.Helper()
	may := map[string]bool{}
	fits, ready, limit := 0, 0, len(f.ready)
	if f.placer.most > 0 && !f.all[l.Unit] {
		limit = f.placer.most
	}
	for n := range f.ready {
		if f.eligible[l.Unit] != nil && !slices.Contains(f.eligible[l.Unit], n) {
			continue
		}
		may[n] = true
		if len(l.Nodes) < limit && !slices.Contains(l.Nodes, n) {
			t.Errorf("%s: %v lacks %s", l.Unit, l.Nodes, n)
		}
		if f.ready[n] {
			ready++
			if !f.cordoned[n] {
				fits++
			}
		}
	}
	if len(l.Nodes) != min(len(may), limit) {
		t.Errorf("%s: %v has %d nodes, %d are eligible", l.Unit, l.Nodes, len(l.Nodes), len(may))
	}
	if len(may) == 0 {
		return
	}
	first := l.Nodes[0]
	if owner := f.status[l.Unit]; may[owner] {
		if first != owner {
			t.Errorf("%s: %v, although %s is the owner", l.Unit, l.Nodes, owner)
		}
	} else if fits > 0 && (!f.ready[first] || f.cordoned[first]) || ready > 0 && !f.ready[first] {
		t.Errorf("%s: without an owner, and %v is led by a node that is not ready, or cordoned", l.Unit, l.Nodes)
	}
	// Without an owner the first fit node of the old list leads.
	i := slices.IndexFunc(before, func(n string) bool { return may[n] && f.ready[n] && !f.cordoned[n] })
	if !may[f.status[l.Unit]] && i >= 0 && first != before[i] {
		t.Errorf("%s: went from %v to %v, though %s is fit", l.Unit, before, l.Nodes, before[i])
	}
	// The next node is not cordoned while a better one exists.
	for _, n := range l.Nodes[1:] {
		if f.ready[n] && !f.cordoned[n] {
			break
		}
		if fitHeirs := fits > 1 || fits == 1 && (!f.ready[first] || f.cordoned[first]); f.ready[n] && fitHeirs {
			t.Errorf("%s: %v, and cordoned %s would inherit", l.Unit, l.Nodes, n)
		}
	}
}

// TestBalance places many units at once and one after another: no node leads two more than another, also after the
// death of any one node.
func TestBalance(t *testing.T) {
	for _, nodes := range []int{2, 3, 5, 10} {
		for _, units := range []int{1, 3, 10, 50, 200} {
			for _, oneByOne := range []bool{false, true} {
				if oneByOne && units > 50 {
					continue
				}
				for _, dead := range []int{0, nodes - 1} {
					f := newFixture(t)
					for i := range nodes {
						f.do(fmt.Sprintf("node n%d", i))
					}
					for i := range units {
						f.eligible[fmt.Sprintf("v%d", i)] = nil
						if oneByOne || i == units-1 {
							f.settle(false)
						}
					}
					name := fmt.Sprintf("%d nodes, %d units, one by one %v, n%d dies", nodes, units, oneByOne, dead)
					if least, most := f.load(); most-least > 1 {
						t.Errorf("%s: before, a node leads %d, another %d", name, most, least)
					}
					f.settle(true)
					dies(f, fmt.Sprintf("n%d", dead))
					if least, most := f.load(); most-least > 1 {
						t.Errorf("%s: a node leads %d, another %d", name, most, least)
					}
				}
			}
		}
	}
}

// TestDeaths: the nodes die one after another. If the order is made exact in between, the loads of the others differ by
// at most one.
func TestDeaths(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		f := newFixture(t)
		nodes := 3 + r.IntN(10)
		for i := range nodes {
			f.do(fmt.Sprintf("node n%d", i))
		}
		f.do(fmt.Sprintf("vips %d", 1+r.IntN(80)))
		for _, i := range r.Perm(nodes)[1:] {
			f.settle(true)
			dies(f, fmt.Sprintf("n%d", i))
			if least, most := f.load(); most-least > 1 {
				t.Fatalf("seed %d: n%d died, a node leads %d, another %d", seed, i, most, least)
			}
		}
	}
}

// dies removes the node while the controller is not running.
func dies(f *fixture, node string) {
	f.do("api off")
	f.do("dies " + node)
	f.do("down " + node)
	f.do("api on")
}

// load returns the smallest and largest number of units that a live node holds.
func (f *fixture) load() (least, most int) {
	held := map[string]int{}
	for _, n := range f.holds {
		held[n]++
	}
	least = len(f.lists)
	for n, alive := range f.alive {
		if alive {
			least, most = min(least, held[n]), max(most, held[n])
		}
	}
	return least, most
}

// TestAPIAway: nodes die and return while the API server is unavailable. When it is back, and reports all nodes as not
// ready for a while, nothing moves.
func TestAPIAway(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		f := newFixture(t)
		f.do("node n0 n1 n2 n3 n4 n5")
		f.do("vips 20")
		f.settle(true)
		f.do("api off")
		for range 20 {
			n := fmt.Sprintf("n%d", r.IntN(6))
			if f.alive[n] = !f.alive[n]; len(f.live()) == 0 {
				f.alive[n] = true
			}
			f.elect()
		}
		for n := range f.ready {
			f.ready[n] = r.IntN(3) > 0
		}
		held := maps.Clone(f.holds)
		f.placer = Placer{} // it was restarted as well
		f.do("api on")
		for n := range f.ready {
			f.ready[n] = f.alive[n]
		}
		f.settle(r.IntN(2) == 0)
		for n := range f.ready {
			f.alive[n], f.ready[n] = true, true
		}
		f.settle(true)
		if f.moves > 0 || !maps.Equal(held, f.holds) {
			t.Fatalf("seed %d: %d moves; held %v, now %v", seed, f.moves, held, f.holds)
		}
	}
}

func (f *fixture) live() []string {
	var out []string
	for n, alive := range f.alive {
		if alive {
			out = append(out, n)
		}
	}
	return out
}

// TestFewWrites counts the other lists that a new address changes, and those changed by the final exact order.
func TestFewWrites(t *testing.T) {
	f := newFixture(t)
	for i := range 10 {
		f.ready[fmt.Sprintf("n%d", i)] = true
	}
	const units = 200
	changed := 0
	place := func(exact bool) {
		for _, l := range f.place(exact) {
			if l.Reason != Unchanged {
				changed++
			}
			f.lists[l.Unit] = l.Nodes
		}
	}
	for i := range units {
		f.eligible[fmt.Sprintf("v%d", i)] = nil
		place(false)
	}
	if changed > units*3/2 {
		t.Errorf("%d new units made %d changes", units, changed)
	}
	changed = 0
	place(true)
	if changed > units/2 {
		t.Errorf("making the order of %d units exact made %d changes", units, changed)
	}
	changed = 0
	f.ready["n10"] = true
	place(false)
	if changed != units {
		t.Errorf("a node that joins made %d changes, want one of each of %d lists", changed, units)
	}
}

// TestMovesEnd: deliberate moves terminate and leave the nodes balanced; with preferences, the preferred nodes.
func TestMovesEnd(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 4))
		f := newFixture(t)
		for range 40 {
			f.random(r)
			f.settle(r.IntN(2) == 0)
		}
		for n, ready := range f.ready {
			f.alive[n] = ready
		}
		f.settle(true)
		f.do("move")
		units, nodes := f.input()
		for i := range units {
			units[i].Movable = true
		}
		if m, ok := NextMove(units, f.place(true), nodes); ok {
			t.Fatalf("seed %d: %+v is left", seed, m)
		}
		for unit, h := range f.holds {
			if f.cordoned[h] && f.eligible[unit] == nil && slices.ContainsFunc(nodes, func(n Node) bool { return n.Ready && !n.Cordoned }) {
				t.Fatalf("seed %d: %s is still on cordoned %s", seed, unit, h)
			}
		}
	}
}

// large returns 2,000 placed units on 100 nodes.
func large(p *Placer) ([]Unit, []Node) {
	var nodes []Node
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("n%d", i))
		nodes = append(nodes, Node{Name: names[i], Ready: true})
	}
	var units []Unit
	for i := range 2000 {
		units = append(units, Unit{Name: fmt.Sprintf("v%d", i), Eligible: names})
	}
	for i, l := range p.Place(units, nodes, true) {
		units[i] = Unit{Name: l.Unit, Eligible: names, Previous: l.Nodes, Owner: l.Nodes[0]}
	}
	return units, nodes
}

// BenchmarkPlace measures one pass over 2,000 units on 100 nodes: without a change, and after the death of a node.
func BenchmarkPlace(b *testing.B) {
	b.Run("idle", func(b *testing.B) {
		p := &Placer{}
		units, nodes := large(p)
		for b.Loop() {
			p.Place(units, nodes, true)
		}
	})
	b.Run("death", func(b *testing.B) {
		p := &Placer{}
		units, nodes := large(p)
		for i := range units {
			if u := &units[i]; u.Owner == "n7" {
				u.Owner = u.Previous[1]
			}
		}
		nodes[7].Ready = false
		for b.Loop() {
			p.Place(units, nodes, true)
		}
	})
	b.Run("rebalance", func(b *testing.B) {
		p := &Placer{}
		units, nodes := large(p)
		for i := range units {
			units[i].Movable = true
		}
		lists := p.Place(units, nodes, true)
		for b.Loop() {
			NextMove(units, lists, nodes)
		}
	})
}
