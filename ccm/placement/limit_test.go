package placement

import (
	"fmt"
	"slices"
	"testing"
)

// limited returns a fixture with many nodes and units, all placed and owned.
func limited(t *testing.T, nodes, units int) *fixture {
	f := newFixture(t)
	for i := range nodes {
		f.ready[fmt.Sprintf("n%d", i)], f.alive[fmt.Sprintf("n%d", i)] = true, true
	}
	for i := range units {
		f.eligible[fmt.Sprintf("v%d", i)] = nil
	}
	f.settle(true)
	return f
}

// changes places once, returns how many lists changed, and lets the speakers act.
func (f *fixture) changes(exact bool) (n int) {
	for _, l := range f.place(exact) {
		if l.Reason != Unchanged {
			n++
		}
		f.lists[l.Unit] = l.Nodes
	}
	f.elect()
	return n
}

// TestLimit: with many nodes a list has Most of them. A join then changes no list, a death those of the units that
// moved, and the removal of a node those that contain it.
func TestLimit(t *testing.T) {
	const nodes, units = 100, 1000
	f := limited(t, nodes, units)
	listed := 0
	for _, list := range f.lists {
		if len(list) != Most {
			t.Fatalf("a list has %d nodes", len(list))
		}
		if slices.Contains(list, "n7") {
			listed++
		}
	}
	if least, most := f.load(); least != units/nodes || most != units/nodes {
		t.Errorf("nodes lead %d to %d units", least, most)
	}
	f.ready["new"], f.alive["new"] = true, true
	if n := f.changes(true); n > 0 {
		t.Errorf("a join changed %d lists", n)
	}
	moved := 0
	for _, h := range f.holds {
		if h == "n7" {
			moved++
		}
	}
	f.alive["n7"] = false
	f.elect()
	if n := f.changes(false); n != moved {
		t.Errorf("a death changed %d lists, %d units moved", n, moved)
	}
	f.ready["n7"] = false
	if n := f.changes(true); n > moved {
		t.Errorf("a death changed %d more lists, %d units moved", n, moved)
	}
	if least, most := f.load(); most-units/nodes > 2 || f.alive["new"] && least > 0 {
		t.Errorf("after the death a node leads %d units, another %d", most, least)
	}
	delete(f.ready, "n7")
	delete(f.alive, "n7")
	if n := f.changes(true); n == 0 || n > listed {
		t.Errorf("a removal changed %d lists, %d contained the node", n, listed)
	}
	f.all = map[string]bool{"v3": true}
	if n := f.changes(true); n != 1 || len(f.lists["v3"]) != nodes {
		t.Errorf("%d lists changed, and a unit that requires all nodes lists %d", n, len(f.lists["v3"]))
	}
}

// TestLimitBoundary: the lists of Most nodes do not change when more nodes join, and have all nodes again when fewer
// are left.
func TestLimitBoundary(t *testing.T) {
	f := limited(t, Most, 20)
	for range 3 {
		f.ready["new"], f.alive["new"] = true, true
		if n := f.changes(true); n > 0 {
			t.Errorf("node %d changed %d lists", Most+1, n)
		}
		delete(f.ready, "new")
		delete(f.alive, "new")
		if n := f.changes(true); n > 0 {
			t.Errorf("its removal changed %d lists", n)
		}
	}
}

// TestAble: lists are filled with nodes that can answer, and again when fewer than a quarter of a list can.
func TestAble(t *testing.T) {
	const nodes = 200
	f := limited(t, nodes, 50)
	able := func(list []string) (n int) {
		for _, node := range list {
			if f.able[node] && f.ready[node] {
				n++
			}
		}
		return n
	}
	f.able = map[string]bool{} // first reports: one rack of ten is attached to the subnet
	for i := range nodes {
		f.able[fmt.Sprintf("n%d", i)] = i%10 == 0
	}
	f.changes(true)
	for unit, list := range f.lists {
		if n := able(list); n != nodes/10 {
			t.Errorf("%s lists %d of %d nodes that can answer", unit, n, nodes/10)
		}
		if !f.able[list[1]] {
			t.Errorf("%s: second is %s, which cannot answer", unit, list[1])
		}
	}
	if n := f.changes(true); n > 0 {
		t.Errorf("placed again, %d lists changed", n)
	}
	for i := range nodes {
		f.able[fmt.Sprintf("n%d", i)] = i%10 < 8
	}
	if n := f.changes(true); n > 0 {
		t.Errorf("more nodes that can answer changed %d lists", n)
	}
	for unit, list := range f.lists { // all but the owner and two others go down
		if unit == "v9" {
			for _, n := range list[3:] {
				f.ready[n], f.alive[n] = false, false
			}
		}
	}
	f.changes(true)
	if n := able(f.lists["v9"]); n != Most {
		t.Errorf("v9 lists %d nodes that can answer after most of them went down", n)
	}
}
