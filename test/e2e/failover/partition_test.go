package failover

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// oneSecond after the end of a partition there is one owner. busy is added for a busy machine.
const (
	oneSecond = time.Second
	busy      = 2 * time.Second
)

// pass ends all losses, now or at the end of the test.
func pass(t *testing.T) {
	t.Helper()
	if err := cluster.Pass(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// agreed waits until each VirtualIP has one owner again. It checks that no request was answered twice later than a
// second after the moment.
func (s *scene) agreed(since time.Time, what string) owners {
	s.t.Helper()
	now := s.settledFor(watch, what)
	for _, v := range s.vips {
		for _, a := range v.addrs {
			late := s.w.Seen(a, since.Add(oneSecond+busy), time.Now())
			if (late.Duplicates > 0 || late.Moves() > 0) && len(s.starved()) == 0 {
				s.t.Errorf("%v has %d questions with two answers and %d moves later than %s %s", a, late.Duplicates, late.Moves(), oneSecond+busy, what)
			}
			if n := s.w.Seen(a, since.Add(oneSecond), time.Now()).Duplicates; n > 0 {
				s.t.Logf("%v: %d questions had two answers later than %s %s", a, n, oneSecond, what)
			}
		}
	}
	return now
}

// TestOneWayLoss: one node, then both others, do not receive the owner, which receives all (an asymmetric link).
func TestOneWayLoss(t *testing.T) {
	rare.Test(t)
	for _, asymmetric := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d others do not receive the owner", asymmetric), func(t *testing.T) {
			s, before := serving(t, 3)
			holder := before[s.vips[0].service]
			var losses []lab.Loss
			for _, o := range others(holder)[:asymmetric] {
				losses = append(losses, lab.Loss{From: &holder.Machine, To: &o.Machine, Percent: 100})
			}
			began := time.Now()
			t.Cleanup(func() { pass(t) })
			if err := cluster.Lose(t.Context(), losses...); err != nil {
				t.Fatal(err)
			}
			during := s.agreed(began, "after the loss began")
			if asymmetric == 1 {
				// The third node reports that it receives the owner, so no node takes over.
				s.stayed(began, before, during)
			}
			healed := time.Now()
			pass(t)
			s.stayed(healed, during, s.agreed(healed, "after the loss ended"))
		})
	}
}

// TestOneWayLink: the switch delivers nothing to the owner any more, but passes what it sends: another node takes over,
// and keeps the addresses when the owner receives again.
func TestOneWayLink(t *testing.T) {
	rare.Test(t)
	s, before := serving(t, 3)
	holder := before[s.vips[0].service]
	t.Cleanup(func() { pass(t) })
	began := time.Now()
	if err := cluster.Lose(t.Context(), lab.Loss{To: &holder.Machine, Percent: 100}); err != nil {
		t.Fatal(err)
	}
	after := s.leaves(holder)
	s.stayed(began, before, after, holder)
	s.lasts(after, time.Now(), watch)
	healed := time.Now()
	pass(t)
	s.stayed(healed, after, s.agreed(healed, "after the owner received again"))
}

// TestPartition: no node receives another, while the clients receive all. Each node then owns everything, as required;
// one owner is left when they reconnect.
func TestPartition(t *testing.T) {
	rare.Test(t)
	s, _ := serving(t, 3)
	t.Cleanup(func() { pass(t) })
	if err := cluster.Lose(t.Context(), cluster.AmongNodes(100)...); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cluster.Await(t, patience, "each side answers for what the other held", func(context.Context) error {
		for _, v := range s.vips {
			if seen := s.w.Seen(v.addrs[0], began, time.Now()); len(seen.All) < 2 {
				return fmt.Errorf("%v is answered by %v", v.addrs[0], names(seen.All))
			}
		}
		return nil
	})
	healed := time.Now()
	pass(t)
	t.Logf("after the partition: %v", s.agreed(healed, "after the partition ended"))
}

// TestLoss: a network that loses one frame in twenty moves nothing.
func TestLoss(t *testing.T) {
	rare.Test(t)
	s, before := serving(t, 3)
	t.Cleanup(func() { pass(t) })
	if err := cluster.Lose(t.Context(), cluster.AmongNodes(5)...); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.lasts(before, began, 10*time.Second)
}

// TestPause: a speaker that is stopped for five seconds and resumes answers no request of that time, and takes nothing
// back.
func TestPause(t *testing.T) {
	s, before := serving(t, 3)
	holder := before[s.vips[0].service]
	s.victims = []*lab.Node{holder}
	began := time.Now()
	if err := holder.Speaker().Pause(); err != nil {
		t.Fatal(err)
	}
	resume := func() {
		if err := holder.Speaker().Resume(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(resume) // a second call is harmless
	after := s.leaves(holder)
	s.reported(after)
	s.lasts(after, time.Now().Add(-calm), 5*time.Second-min(5*time.Second, time.Since(began)))
	woke := time.Now()
	resume()
	s.stayed(woke, after, s.settledFor(watch, "after the speaker woke up"))
	s.stayed(began, before, after, holder)
}

// TestIsolated: a node whose LAN link is cut detects through a separate node network that it is isolated. It claims
// nothing until it receives another node on the LAN again.
func TestIsolated(t *testing.T) {
	rare.Test(t)
	for _, n := range cluster.Nodes {
		if err := n.SetNodeNetwork(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.SetNodeNetwork(context.Background(), false); err != nil {
				t.Error(err)
			}
		})
	}
	s, before := serving(t, 3)
	victim := before[s.vips[0].service]
	began := time.Now()
	if err := victim.CutLAN(t.Context()); err != nil {
		t.Fatal(err)
	}
	restored := false
	restore := func() {
		if restored {
			return
		}
		restored = true
		if err := victim.RestoreLAN(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(restore)
	after := s.leaves(victim)
	s.stayed(began, before, after, victim)
	s.reported(after)
	s.lasts(after, time.Now(), watch)
	s.reported(after)

	since := time.Now()
	restore()
	s.stayed(since, after, s.settledFor(watch, "after the return"))
}
