package placement

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// random changes the world in one way.
func (w *world) random(r *rand.Rand) {
	node := fmt.Sprintf("n%d", r.IntN(7))
	unit := fmt.Sprintf("v%d", r.IntN(25))
	switch r.IntN(8) {
	case 0, 1:
		w.ready[node] = true
	case 2:
		if _, ok := w.ready[node]; ok {
			w.ready[node] = false
		}
	case 3:
		delete(w.ready, node)
	case 4:
		delete(w.eligible, unit)
		delete(w.lists, unit)
	case 5:
		w.eligible[unit] = []string{node, fmt.Sprintf("n%d", r.IntN(7)), fmt.Sprintf("n%d", r.IntN(7))}
	default:
		w.eligible[unit] = nil
	}
}

// TestProperties holds in any cluster after any history.
func TestProperties(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld()
		for step := range 60 {
			w.random(r)
			before := map[string][]string{}
			for k, v := range w.lists {
				before[k] = v
			}
			lists := w.place()
			if again := w.place(); !reflect.DeepEqual(lists, again) {
				t.Fatalf("seed %d step %d: the order of the input matters:\n%v\n%v", seed, step, lists, again)
			}
			for _, l := range lists {
				w.check(t, l, before[l.Unit])
				w.lists[l.Unit] = l.Nodes
			}
			for _, l := range w.place() {
				if l.Reason != Unchanged {
					t.Fatalf("seed %d step %d: placed again, %s changed to %v (%s)", seed, step, l.Unit, l.Nodes, l.Reason)
				}
			}
			if t.Failed() {
				t.Fatalf("seed %d step %d", seed, step)
			}
		}
	}
}

// check holds for every list, given what it was.
func (w *world) check(t *testing.T, l List, before []string) {
	t.Helper()
	may := map[string]bool{}
	for n := range w.ready {
		may[n] = w.eligible[l.Unit] == nil || slices.Contains(w.eligible[l.Unit], n)
	}
	n, ready := 0, 0
	for node, ok := range may {
		if ok {
			n++
			if w.ready[node] {
				ready++
			}
			if !slices.Contains(l.Nodes, node) {
				t.Errorf("%s: %v lacks %s", l.Unit, l.Nodes, node)
			}
		}
	}
	if len(l.Nodes) != n {
		t.Errorf("%s: %v has %d nodes, %d are eligible", l.Unit, l.Nodes, len(l.Nodes), n)
	}
	if n == 0 {
		return
	}
	owner := l.Nodes[0]
	if ready > 0 && !w.ready[owner] {
		t.Errorf("%s: %v is led by a node that is not ready", l.Unit, l.Nodes)
	}
	// The owner is the node that the speakers chose by themselves: the first of the old list that is ready and eligible.
	if i := slices.IndexFunc(before, func(n string) bool { return may[n] && w.ready[n] }); i >= 0 && owner != before[i] {
		t.Errorf("%s: went from %v to %v, though %s is ready", l.Unit, before, l.Nodes, before[i])
	}
	if ready == 0 {
		if i := slices.IndexFunc(before, func(n string) bool { return may[n] }); i >= 0 && owner != before[i] {
			t.Errorf("%s: went from %v to %v, though no node is ready", l.Unit, before, l.Nodes)
		}
	}
}

// TestBalance places many at once and one after another: no node leads two more than another, and the addresses of a
// node that dies spread evenly.
func TestBalance(t *testing.T) {
	for _, nodes := range []int{2, 3, 5, 10} {
		for _, units := range []int{1, 3, 10, 50, 200} {
			for _, oneByOne := range []bool{false, true} {
				w := newWorld()
				for i := range nodes {
					w.ready[fmt.Sprintf("n%d", i)] = true
				}
				for i := range units {
					w.eligible[fmt.Sprintf("v%d", i)] = nil
					if oneByOne || i == units-1 {
						for _, l := range w.place() {
							w.lists[l.Unit] = l.Nodes
						}
					}
				}
				name := fmt.Sprintf("%d nodes, %d units, one by one %v", nodes, units, oneByOne)
				if least, most := w.load(); most-least > 1 {
					t.Errorf("%s: a node leads %d, another %d", name, most, least)
				}
				w.ready["n0"] = false
				for _, l := range w.place() {
					w.lists[l.Unit] = l.Nodes
				}
				if least, most := w.load(); most-least > 2+slack {
					t.Errorf("%s: after a death a node leads %d, another %d", name, most, least)
				}
			}
		}
	}
}

// load returns the least and the most units that a ready node leads.
func (w *world) load() (least, most int) {
	led := map[string]int{}
	for _, list := range w.lists {
		led[list[0]]++
	}
	least = len(w.lists)
	for n, ready := range w.ready {
		if ready {
			least, most = min(least, led[n]), max(most, led[n])
		}
	}
	return least, most
}

// TestFewWrites counts the lists that a new address changes beside its own.
func TestFewWrites(t *testing.T) {
	w := newWorld()
	for i := range 10 {
		w.ready[fmt.Sprintf("n%d", i)] = true
	}
	const units = 200
	changed := 0
	for i := range units {
		w.eligible[fmt.Sprintf("v%d", i)] = nil
		for _, l := range w.place() {
			if l.Reason != Unchanged {
				changed++
			}
			w.lists[l.Unit] = l.Nodes
		}
	}
	if changed > units*3/2 {
		t.Errorf("%d new units made %d changes", units, changed)
	}
}

// BenchmarkPlace is one pass over 5,000 units on 100 nodes in which nothing changes.
func BenchmarkPlace(b *testing.B) {
	var nodes []Node
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("n%d", i))
		nodes = append(nodes, Node{Name: names[i], Ready: true})
	}
	var units []Unit
	for i := range 5000 {
		units = append(units, Unit{Name: fmt.Sprintf("v%d", i), Eligible: names})
	}
	for i, l := range Place(units, nodes) {
		units[i] = Unit{Name: l.Unit, Eligible: names, Previous: l.Nodes}
	}
	for b.Loop() {
		Place(units, nodes)
	}
}
