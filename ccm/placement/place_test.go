package placement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// random applies one random change to the world.
func (w *world) random(r *rand.Rand) {
	node := fmt.Sprintf("n%d", r.IntN(7))
	unit := fmt.Sprintf("v%d", r.IntN(25))
	_, there := w.ready[node]
	switch r.IntN(12) {
	case 0, 1:
		w.ready[node], w.alive[node] = true, true
	case 2:
		if there {
			w.ready[node] = !w.ready[node]
		}
	case 3:
		if there {
			w.alive[node] = !w.alive[node]
		}
	case 4:
		delete(w.ready, node)
		delete(w.alive, node)
	case 5:
		delete(w.eligible, unit)
		delete(w.lists, unit)
	case 6:
		w.eligible[unit] = []string{node, fmt.Sprintf("n%d", r.IntN(7)), fmt.Sprintf("n%d", r.IntN(7))}
	case 7:
		w.cordoned[node] = !w.cordoned[node]
	case 8:
		w.weights = map[string]int{node: r.IntN(3) * 10, "n0": r.IntN(3) * 10}
		maps.DeleteFunc(w.weights, func(_ string, n int) bool { return n == 0 })
	default:
		w.eligible[unit] = nil
	}
}

// TestProperties checks properties that hold in any cluster after any history.
func TestProperties(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		if seed%2 == 1 { // with limited lists
			w.placer.most, w.all = 2+r.IntN(4), map[string]bool{"v1": true, "v7": true}
		}
		for step := range 60 {
			w.random(r)
			if w.placer.most > 0 && r.IntN(4) == 0 {
				w.able = map[string]bool{}
				for n := range 7 {
					w.able[fmt.Sprintf("n%d", n)] = r.IntN(3) > 0
				}
			}
			w.elect()
			exact := r.IntN(2) == 0
			before, held := maps.Clone(w.lists), maps.Clone(w.holds)
			lists := w.place(exact)
			units, nodes := w.input()
			if again := (&Placer{most: w.placer.most}).Place(units, nodes, exact); !reflect.DeepEqual(lists, again) {
				t.Fatalf("seed %d step %d: the order of the input or what was read before matters:\n%v\n%v", seed, step, lists, again)
			}
			for _, l := range lists {
				w.check(l, before[l.Unit])
				w.lists[l.Unit] = l.Nodes
			}
			for _, l := range w.place(exact) {
				if l.Reason != Unchanged {
					t.Fatalf("seed %d step %d: placed again, %s changed to %v (%s)", seed, step, l.Unit, l.Nodes, l.Reason)
				}
			}
			w.elect()
			for unit, h := range held {
				if now := w.holds[unit]; now != h && h != "" && w.alive[h] && slices.Contains(w.lists[unit], h) {
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
func (w *world) check(l List, before []string) {
	t := w.t
	t.Helper()
	may := map[string]bool{}
	fits, ready, limit := 0, 0, len(w.ready)
	if w.placer.most > 0 && !w.all[l.Unit] {
		limit = w.placer.most
	}
	for n := range w.ready {
		if w.eligible[l.Unit] != nil && !slices.Contains(w.eligible[l.Unit], n) {
			continue
		}
		may[n] = true
		if len(l.Nodes) < limit && !slices.Contains(l.Nodes, n) {
			t.Errorf("%s: %v lacks %s", l.Unit, l.Nodes, n)
		}
		if w.ready[n] {
			ready++
			if !w.cordoned[n] {
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
	if owner := w.status[l.Unit]; may[owner] {
		if first != owner {
			t.Errorf("%s: %v, although %s is the owner", l.Unit, l.Nodes, owner)
		}
	} else if fits > 0 && (!w.ready[first] || w.cordoned[first]) || ready > 0 && !w.ready[first] {
		t.Errorf("%s: without an owner, and %v is led by a node that is not ready, or cordoned", l.Unit, l.Nodes)
	}
	// Without an owner the first fit node of the old list leads.
	i := slices.IndexFunc(before, func(n string) bool { return may[n] && w.ready[n] && !w.cordoned[n] })
	if !may[w.status[l.Unit]] && i >= 0 && first != before[i] {
		t.Errorf("%s: went from %v to %v, though %s is fit", l.Unit, before, l.Nodes, before[i])
	}
	// The next node is not cordoned while a better one exists.
	for _, n := range l.Nodes[1:] {
		if w.ready[n] && !w.cordoned[n] {
			break
		}
		if fitHeirs := fits > 1 || fits == 1 && (!w.ready[first] || w.cordoned[first]); w.ready[n] && fitHeirs {
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
					w := newWorld(t)
					for i := range nodes {
						w.do(fmt.Sprintf("node n%d", i))
					}
					for i := range units {
						w.eligible[fmt.Sprintf("v%d", i)] = nil
						if oneByOne || i == units-1 {
							w.settle(false)
						}
					}
					name := fmt.Sprintf("%d nodes, %d units, one by one %v, n%d dies", nodes, units, oneByOne, dead)
					if least, most := w.load(); most-least > 1 {
						t.Errorf("%s: before, a node leads %d, another %d", name, most, least)
					}
					w.settle(true)
					dies(w, fmt.Sprintf("n%d", dead))
					if least, most := w.load(); most-least > 1 {
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
		w := newWorld(t)
		nodes := 3 + r.IntN(10)
		for i := range nodes {
			w.do(fmt.Sprintf("node n%d", i))
		}
		w.do(fmt.Sprintf("vips %d", 1+r.IntN(80)))
		for _, i := range r.Perm(nodes)[1:] {
			w.settle(true)
			dies(w, fmt.Sprintf("n%d", i))
			if least, most := w.load(); most-least > 1 {
				t.Fatalf("seed %d: n%d died, a node leads %d, another %d", seed, i, most, least)
			}
		}
	}
}

// dies removes the node while the controller is not running.
func dies(w *world, node string) {
	w.do("api off")
	w.do("dies " + node)
	w.do("down " + node)
	w.do("api on")
}

// load returns the smallest and largest number of units that a live node holds.
func (w *world) load() (least, most int) {
	held := map[string]int{}
	for _, n := range w.holds {
		held[n]++
	}
	least = len(w.lists)
	for n, alive := range w.alive {
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
		w := newWorld(t)
		w.do("node n0 n1 n2 n3 n4 n5")
		w.do("vips 20")
		w.settle(true)
		w.do("api off")
		for range 20 {
			n := fmt.Sprintf("n%d", r.IntN(6))
			if w.alive[n] = !w.alive[n]; len(w.live()) == 0 {
				w.alive[n] = true
			}
			w.elect()
		}
		for n := range w.ready {
			w.ready[n] = r.IntN(3) > 0
		}
		held := maps.Clone(w.holds)
		w.placer = Placer{} // it was restarted as well
		w.do("api on")
		for n := range w.ready {
			w.ready[n] = w.alive[n]
		}
		w.settle(r.IntN(2) == 0)
		for n := range w.ready {
			w.alive[n], w.ready[n] = true, true
		}
		w.settle(true)
		if w.moves > 0 || !maps.Equal(held, w.holds) {
			t.Fatalf("seed %d: %d moves; held %v, now %v", seed, w.moves, held, w.holds)
		}
	}
}

func (w *world) live() []string {
	var out []string
	for n, alive := range w.alive {
		if alive {
			out = append(out, n)
		}
	}
	return out
}

// TestFewWrites counts the other lists that a new address changes, and those changed by the final exact order.
func TestFewWrites(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		w.ready[fmt.Sprintf("n%d", i)] = true
	}
	const units = 200
	changed := 0
	place := func(exact bool) {
		for _, l := range w.place(exact) {
			if l.Reason != Unchanged {
				changed++
			}
			w.lists[l.Unit] = l.Nodes
		}
	}
	for i := range units {
		w.eligible[fmt.Sprintf("v%d", i)] = nil
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
	w.ready["n10"] = true
	place(false)
	if changed != units {
		t.Errorf("a node that joins made %d changes, want one of each of %d lists", changed, units)
	}
}

// TestMovesEnd: deliberate moves terminate and leave the nodes balanced; with preferences, the preferred nodes.
func TestMovesEnd(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 4))
		w := newWorld(t)
		for range 40 {
			w.random(r)
			w.settle(r.IntN(2) == 0)
		}
		for n, ready := range w.ready {
			w.alive[n] = ready
		}
		w.settle(true)
		w.do("move")
		units, nodes := w.input()
		for i := range units {
			units[i].Movable = true
		}
		if m, ok := NextMove(units, w.place(true), nodes); ok {
			t.Fatalf("seed %d: %+v is left", seed, m)
		}
		for unit, h := range w.holds {
			if w.cordoned[h] && w.eligible[unit] == nil && slices.ContainsFunc(nodes, func(n Node) bool { return n.Ready && !n.Cordoned }) {
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
