package paused

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/steady"
)

const (
	// standstill is the length of the pause: longer than any profile's dead time, and than the others need to take
	// over.
	standstill = 10 * time.Second
	// watch is the time without moves after the resumed node gave up. It is longer than a speaker observes before it
	// claims anything.
	watch = 8 * time.Second

	clockStops = "ironlb_liveness_clock_stops_total"
	stopLogged = "the clock of this node stopped"
)

// TestPausedVirtualMachine: a virtual machine that is paused for ten seconds does not resume as owner. Its own clocks
// do not show the pause; the heartbeats of the others do. Nothing moves, and in the end it is an ordinary candidate.
func TestPausedVirtualMachine(t *testing.T) {
	vm, others := cluster.Node(0), cluster.Nodes[1:]
	s := serving(t, vm, others)
	uptime := s.uptime(vm)
	measured := time.Now()

	if err := vm.PauseVM(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.paused = time.Now()
	resume := func() {
		if err := vm.ResumeVM(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(resume) // a second call is harmless
	owner := s.owned("while the virtual machine is paused", others...)
	s.taken = s.firstAnswer(owner)
	t.Logf("%s answers %s after the pause began", owner.Name, s.taken.Sub(s.paused).Round(time.Millisecond))
	s.lasts(s.paused.Add(standstill))

	s.resumed = time.Now()
	resume()
	cluster.Await(s.t, patience, "the resumed node gives up", func(context.Context) error {
		if !s.logged(vm, stopLogged) {
			return fmt.Errorf("%s has not logged %q", vm.Name, stopLogged)
		}
		return nil
	})
	s.gaveUp = time.Now()
	t.Logf("%s gave up %s after it resumed", vm.Name, s.gaveUp.Sub(s.resumed).Round(time.Millisecond))
	s.lasts(s.gaveUp.Add(watch))
	lost := time.Since(measured) - (s.uptime(vm) - uptime)
	t.Logf("CLOCK_BOOTTIME of %s is behind by %s", vm.Name, lost.Round(time.Millisecond))
	if lost < standstill/2 { // reading the clock of a busy machine takes time
		t.Errorf("the clock of %s did not stop", vm.Name)
	}
	s.unchanged(owner, vm)
	s.silent(owner, vm)
	if n := s.metric(vm, clockStops); n != 1 {
		t.Errorf("%s: %s is %d, want 1", vm.Name, clockStops, n)
	}
	s.standby(vm, len(others))
}

// unchanged checks that since a second after the resumed node gave up only the owner has answered, and that it has
// served every client.
func (s *scene) unchanged(owner, resumed *lab.Node) {
	s.t.Helper()
	since := s.gaveUp.Add(calm)
	until := time.Now().Add(-calm / 2) // later requests may still be answered
	for i, a := range s.addrs {
		seen := s.w.Seen(a, since, until)
		if seen.Asked == 0 || seen.Duplicates > 0 || len(seen.All) != 1 || seen.All[0] != owner.MAC() {
			s.t.Errorf("%v: %d questions since, %d answered twice, %d not at all, by %v; want %s alone, %s",
				a, seen.Asked, seen.Duplicates, seen.Unanswered, seen.All, owner.Name, owner.MAC())
		}
		r := s.clients[i].Report(s.resumed, until)
		s.t.Logf("client of %v since the resumption: %s", a, r)
		// By then the owner has announced itself again.
		if r := s.clients[i].Report(since, until); r.Failed > 0 || r.Tried == 0 {
			s.t.Errorf("client of %v: %d of %d connections failed later than %v after it gave up", a, r.Failed, r.Tried, calm)
		}
		if have := s.neighbor(a); have != owner.MAC() {
			s.t.Errorf("the client's neighbor table has %s for %v, want %s", have, a, owner.MAC())
		}
	}
	for _, n := range cluster.Nodes[1:] {
		if have := s.metric(n, fences); have != s.fences[n] {
			s.t.Errorf("%s of %s: %d, want %d: this machine is too busy, or the speaker is at fault",
				fences, n.Name, have, s.fences[n])
		}
	}
}

// silent checks that the resumed node has announced and answered nothing later than a second after it gave up, and that
// the owner has announced itself after that node's last answer. The network card's queue is processed in order, and
// before the first heartbeats in it no clock shows that time has passed. An emulated machine needs hundreds of
// milliseconds for that, or seconds where this machine is busy; frames sent before the log line may arrive after it.
func (s *scene) silent(owner, resumed *lab.Node) {
	s.t.Helper()
	last := map[bool]time.Time{} // last answer, by whether the address is IPv6
	late, foreign, total := 0, 0, 0
	for _, f := range s.frames.given(resumed.MAC(), s.resumed) {
		if f.Kind == steady.Gratuitous {
			s.t.Logf("%s announced %s after it resumed: %+v", resumed.Name, f.at.Sub(s.resumed), f.Frame)
		}
		if f.Kind == steady.Answer {
			total++
		}
		last[f.Addr.Is6()] = f.at
		if f.at.After(s.gaveUp.Add(calm)) {
			late++
		}
		if f.Kind == steady.Answer && !s.frames.asked(f.Addr, f.Asker, s.paused.Add(-calm), s.taken) {
			foreign++
		}
	}
	s.t.Logf("%s answered %d questions after it resumed, %d of them asked while %s owned the address",
		resumed.Name, total, foreign, owner.Name)
	if late > 0 {
		s.t.Errorf("%s answered or announced %d times later than %v after it gave up", resumed.Name, late, calm)
	}
	for _, f := range s.frames.given(owner.MAC(), s.resumed) {
		if f.Kind == steady.Gratuitous && f.at.After(last[f.Addr.Is6()]) {
			delete(last, f.Addr.Is6())
		}
	}
	if len(last) > 0 {
		s.t.Errorf("%s did not announce itself after the last answers of %s (by family: %v)", owner.Name, resumed.Name, last)
	}
}

// logged reports whether a line is in the log of the node's speaker.
func (s *scene) logged(n *lab.Node, text string) bool {
	s.t.Helper()
	log, err := os.ReadFile(n.Speaker().Log)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Contains(string(log), text)
}
