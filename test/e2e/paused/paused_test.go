package paused

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/steady"
)

const (
	// standstill is how long the virtual machine is paused: longer than any profile's dead time, and than the others
	// need to take over.
	standstill = 10 * time.Second
	// watch is for how long nothing may happen afterwards: longer than a speaker observes before it claims anything,
	// and than what waited in the network card of an emulated machine takes.
	watch = 8 * time.Second

	clockStops = "ironlb_liveness_clock_stops_total"
	stopLogged = "the clock of this node stood still while those of the others went on"
)

// stale is for how long after the pause began a question may have been asked that is answered after the resumption.
// What waited in the network card is read in its order, and before the first heartbeat in it no clock shows that time
// has passed. The lab gives an emulated machine the profile slow; nobody else owns the address so soon.
const stale = 1500 * time.Millisecond

// TestPausedVirtualMachine: a virtual machine that is paused for ten seconds does not resume as owner. Its own clocks
// show nothing of the pause; the heartbeats of the others do. No client notices its resumption, nothing moves, and in
// the end it is an ordinary candidate.
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
	t.Cleanup(resume) // once more does no harm
	owner := s.owned("while the virtual machine is paused", others...)
	t.Logf("%s answers %s after the pause began", owner.Name, s.firstAnswer(owner).Round(time.Millisecond))
	s.lasts(s.paused.Add(standstill), func() {})

	s.resumed = time.Now()
	resume()
	gaveUp := time.Duration(0)
	s.lasts(s.resumed.Add(watch), func() {
		if gaveUp == 0 && s.logged(vm, stopLogged) {
			gaveUp = time.Since(s.resumed)
			t.Logf("%s gave up %s after it resumed", vm.Name, gaveUp.Round(time.Millisecond))
		}
	})
	lost := time.Since(measured) - (s.uptime(vm) - uptime)
	t.Logf("CLOCK_BOOTTIME of %s is behind by %s", vm.Name, lost.Round(time.Millisecond))
	if lost < standstill/2 { // reading the clock of a busy machine takes its time
		t.Errorf("the clock of %s did not stand still", vm.Name)
	}
	s.unchanged(owner, vm)
	s.silent(owner, vm)
	if n := s.metric(vm, clockStops); gaveUp == 0 || n != 1 {
		t.Errorf("%s: %s is %d, want 1; logged: %t", vm.Name, clockStops, n, gaveUp > 0)
	}
	s.standby(vm, len(others))
}

// unchanged wants that since the resumption the owner alone has answered what was asked, and that every client was
// served by it.
func (s *scene) unchanged(owner, resumed *lab.Node) {
	s.t.Helper()
	until := time.Now().Add(-calm / 2) // what was asked later may still be answered
	for i, a := range s.addrs {
		seen := s.w.Seen(a, s.resumed, until)
		if seen.Asked == 0 || seen.Duplicates > 0 || len(seen.All) != 1 || seen.All[0] != owner.MAC() {
			s.t.Errorf("%v: %d questions since the resumption, %d answered twice, %d not at all, by %v; want %s alone, %s",
				a, seen.Asked, seen.Duplicates, seen.Unanswered, seen.All, owner.Name, owner.MAC())
		}
		r := s.clients[i].Report(s.resumed, until)
		s.t.Logf("client of %v since the resumption: %s", a, r)
		if r.Failed > 0 || r.Tried == 0 {
			s.t.Errorf("client of %v: %d of %d connections failed since the resumption", a, r.Failed, r.Tried)
		}
		if have := s.neighbour(a); have != owner.MAC() {
			s.t.Errorf("the client's neighbour table has %s for %v, want %s", have, a, owner.MAC())
		}
	}
	for _, n := range cluster.Nodes[1:] {
		if have := s.metric(n, fences); have != s.fences[n] {
			s.t.Errorf("%s of %s: %d, want %d: this machine is too busy, or the speaker is at fault",
				fences, n.Name, have, s.fences[n])
		}
	}
}

// silent wants that the node that resumed has announced nothing and answered nothing but what was asked before its
// clock could show anything; and that the owner has announced itself since, for whoever got such an answer.
func (s *scene) silent(owner, resumed *lab.Node) {
	s.t.Helper()
	last := map[bool]time.Time{} // answer, by whether the address is of IPv6
	late, total := 0, 0
	for _, f := range s.frames.given(resumed.MAC(), s.resumed) {
		if f.Kind == steady.Gratuitous {
			s.t.Errorf("%s announced %s after it resumed: %+v", resumed.Name, f.at.Sub(s.resumed), f.Frame)
			continue
		}
		total++
		last[f.Addr.Is6()] = f.at
		if !s.frames.asked(f.Addr, f.Asker, s.paused.Add(-calm), s.paused.Add(stale)) {
			late++
			s.t.Logf("%s answered %s after it resumed: %+v", resumed.Name, f.at.Sub(s.resumed), f.Frame)
		}
	}
	s.t.Logf("%s answered %d questions that had waited", resumed.Name, total)
	if late > 0 {
		s.t.Errorf("%s answered %d questions after it resumed, %d of them asked later than %s after the pause began",
			resumed.Name, total, late, stale)
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
