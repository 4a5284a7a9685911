package member_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/view"
)

// A virtual machine that was paused without a trace in its clocks gives up what it held before any node has yielded to
// it.
func TestPausedMachine(t *testing.T) {
	for _, nodes := range []int{2, 3, 10} {
		for _, profile := range []member.Profile{member.Standard, member.Fast, member.Slow} {
			t.Run(fmt.Sprint(nodes, " ", profile.Name), func(t *testing.T) { testPausedMachine(t, nodes, profile) })
		}
	}
}

func testPausedMachine(t *testing.T, nodes int, profile member.Profile) {
	w := newWorld(t, nodes, func(c *member.Config) { c.Profile = profile })
	w.loss = 0.02
	w.must("settled", 20*time.Second, w.settled)
	a := w.nodes[0]
	id := view.IDOf("vip-0")
	w.publish(a, claims(1))
	w.must("known", 5*time.Second, func() bool { return w.nodes[1].members.Peers[a.name].Claims[id].State == view.Held })
	w.run(30*time.Second, nil)
	w.pause(a, 10*time.Second)
	resumed := w.now
	w.watch = func(m *machine) {
		p := m.members.Peers[a.name]
		if m != a && p.Alive && p.Claims[id].State == view.Held && !p.Returned {
			t.Fatalf("%v after it resumed %s takes what it held for held", w.now.Sub(resumed), m.name)
		}
	}
	took := w.must("given up", 2*profile.Interval, func() bool { return a.Fenced() && a.members.Observer })
	w.publish(a, view.LocalState{})
	w.run(time.Minute, nil)
	t.Logf("given up %v after it resumed", took)
	for _, m := range w.nodes {
		want := uint64(0)
		if m == a {
			want = 1
		}
		if n := m.Counts(); n.Fences != want || n.ClockStops != want {
			t.Errorf("%s: %d fences, %d for its clock, want %d", m.name, n.Fences, n.ClockStops, want)
		}
	}
	if a.members.Observer || !a.receives(w.nodes...) {
		t.Errorf("it does not take part again: %+v", a.members)
	}
}

// A pause too short to be detected has no effect.
func TestShortPause(t *testing.T) {
	w := newWorld(t, 5)
	w.settle()
	for _, m := range w.nodes {
		w.run(20*time.Second, nil)
		w.pause(m, 200*time.Millisecond)
	}
	w.run(time.Minute, nil)
	for _, m := range w.nodes {
		if n := m.Counts(); n.Fences > 0 || n.FalseDeaths > 0 {
			t.Errorf("%s: %+v", m.name, n)
		}
	}
}

// Delayed heartbeats, in either direction, are no stopped clock: queues of up to a quarter of a second that
// fill and empty, and late loops.
func TestDelayIsNoPause(t *testing.T) {
	w := newWorld(t, 5)
	w.settle()
	w.delay = func() time.Duration {
		if w.now.Sub(epoch)/(3*time.Second)%2 == 0 {
			return 250 * time.Millisecond
		}
		return time.Duration(w.random.IntN(int(20 * time.Millisecond)))
	}
	w.nodes[0].late = func() time.Duration { return time.Duration(w.random.IntN(int(60 * time.Millisecond))) }
	w.run(5*time.Minute, nil)
	for _, m := range w.nodes {
		if n := m.Counts(); n.ClockStops > 0 {
			t.Errorf("%s: %+v", m.name, n)
		}
	}
}

// A time service that slews a clock, as after a pause, makes no node give up anything.
func TestSlewedClock(t *testing.T) {
	for _, slew := range []float64{0.083, -0.08} {
		for _, nodes := range []int{2, 3, 5} {
			w := newWorld(t, nodes)
			w.settle()
			w.run(20*time.Second, nil)
			w.nodes[0].slew = slew
			w.run(time.Minute, nil)
			w.nodes[0].slew = 0
			w.run(time.Minute, nil)
			w.noFence(fmt.Sprintf("%d nodes, slewed by %v", nodes, slew))
		}
	}
}

func (w *world) noFence(what string) {
	w.t.Helper()
	for _, m := range w.nodes {
		if n := m.Counts(); n.Fences > 0 || n.ClockStops > 0 {
			w.t.Errorf("%s: %s: %d fences, %d for its clock", what, m.name, n.Fences, n.ClockStops)
		}
	}
}

// One node whose oscillator is too fast fences no other node if there is a second one to confirm.
func TestOneBadClock(t *testing.T) {
	for _, nodes := range []int{3, 5} {
		w := newWorld(t, nodes)
		w.loss = 0.02
		w.must("settled", 20*time.Second, w.settled)
		w.nodes[0].skew = 0.08
		w.run(2*time.Minute, nil)
		for _, m := range w.nodes[1:] {
			if n := m.Counts(); n.Fences > 0 {
				t.Errorf("%d nodes: %s: %+v", nodes, m.name, n)
			}
		}
	}
}

// The second node died meanwhile and cannot confirm: a paused machine still gives up what it held.
func TestPausedWhileAnotherDied(t *testing.T) {
	w := newWorld(t, 3)
	w.settle()
	w.run(20*time.Second, nil)
	w.nodes[1].off = true
	w.pause(w.nodes[0], 10*time.Second)
	w.must("given up", member.Standard.Dead, w.nodes[0].Fenced)
}
