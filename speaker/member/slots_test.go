package member_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

// The digests of slots travel with heartbeats. Those of nodes that can do the same through tunnels are compared.
func TestSlots(t *testing.T) {
	w := newWorld(t, 4)
	w.settle()
	a, b, c := w.nodes[0], w.nodes[1], w.nodes[2] // the fourth has a version without digests
	all := w.nodes
	for _, m := range all {
		w.publish(m, view.LocalState{Direct: true})
	}
	settle := func() { w.run(time.Second, nil) }
	want := func(what string, m *machine, differ map[string]uint64) {
		t.Helper()
		if got := m.Slots(); !maps.Equal(got, differ) {
			t.Errorf("%s: at %s %v differ, want %v", what, m.name, got, differ)
		}
	}
	settle()
	want("nothing known", a, nil)
	for _, m := range all[:3] {
		m.SetSlots(7)
	}
	settle()
	want("equal", a, nil)
	sent := w.sent
	b.SetSlots(8)
	if b.Urgent() {
		t.Error("a change of slots is sent at once")
	}
	settle()
	for _, m := range []*machine{a, c} {
		want("b differs", m, map[string]uint64{b.name: 8})
	}
	want("b differs", b, map[string]uint64{a.name: 7, c.name: 7})
	if w.sent == sent {
		t.Fatal("nothing was sent")
	}
	b.SetSlots(0)
	settle()
	want("b directs nothing", a, map[string]uint64{b.name: 0})

	w.publish(b, view.LocalState{Direct: true, DirectIPv4Only: true})
	settle()
	want("b for IPv4 only", a, nil)
	want("b for IPv4 only", b, nil)
	w.publish(b, view.LocalState{})
	settle()
	want("b without tunnels", a, nil)
	want("b without tunnels", b, nil)
	w.publish(b, view.LocalState{Direct: true})
	settle()
	want("b with tunnels again", a, map[string]uint64{b.name: 0})

	b.Fence(w.now)
	w.tick(b)
	want("b observes", b, nil)
	w.boot(b, 2)
	settle()
	want("b restarts with a version without digests", a, nil)
	b.SetSlots(9)
	w.publish(b, view.LocalState{Direct: true})
	settle()
	want("b restarts", a, map[string]uint64{b.name: 9})
	b.off = true
	settle()
	want("b is dead", a, nil)
}

// A Detector advertises the digest of its slots, and returns those of others that differ.
func TestDetectorComparesSlots(t *testing.T) {
	h := newHub(t, "a", "b")
	h.settle(t)
	a, b := h.nodes[0], h.nodes[1]
	for _, n := range h.nodes {
		n.Publish(view.LocalState{Direct: true})
	}
	for _, step := range []struct{ ofA, ofB uint64 }{{7, 7}, {7, 8}, {0, 8}, {8, 8}} {
		toA, toB := map[string]uint64{}, map[string]uint64{}
		if step.ofA != step.ofB {
			toA["b"], toB["a"] = step.ofB, step.ofA
		}
		eventually.Nil(t, patience, fmt.Sprintf("%+v", step), func(context.Context) error {
			a.Observe()
			b.Observe()
			atA, atB := a.CompareSlots(step.ofA), b.CompareSlots(step.ofB)
			return eventually.Unless(maps.Equal(atA, toA) && maps.Equal(atB, toB), "%v at a, %v at b", atA, atB)
		})
	}
}
