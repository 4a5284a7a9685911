package failover

import (
	"context"
	"testing"
	"time"
)

// TestAPIServerDown: while the API server is away every address is answered all the time, the VirtualIPs of a node that dies move,
// nothing else does, and nothing at all when the server and the node are back.
func TestAPIServerDown(t *testing.T) {
	s := serving(t, 3)
	before := s.settled("at the start")
	victim := before[s.vips[0].service]
	// Of another node, so it must not notice anything.
	var bystander vip
	for _, v := range s.vips {
		if before[v.service] != victim {
			bystander = v
		}
	}
	stop := s.client(bystander)

	began := time.Now()
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	up := false
	restore := func() {
		if up {
			return
		}
		up = true
		if err := cluster.StartAPIServer(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(restore)
	s.lasts(before, began, *apiDown/2)
	s.stayed(began, before, before)

	died := time.Now()
	if err := victim.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	off := true
	t.Cleanup(func() {
		restore()
		if !off {
			return
		}
		if err := powerOn(context.Background(), victim); err != nil {
			t.Error(err)
		}
	})
	after := s.leaves(victim)
	s.stayed(died, before, after, victim)
	s.lasts(after, time.Now(), *apiDown/2)

	since := time.Now()
	restore()
	if err := powerOn(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	off = false
	s.stayed(since, after, s.settledFor(watch, "with the API server back"))
	for i, r := range stop(began) {
		t.Logf("%v, on a node that nothing happened to: %s", bystander.addrs[i], r)
		if r.Failed > 0 {
			t.Errorf("%v: %d connections failed, and nothing happened to its node", bystander.addrs[i], r.Failed)
		}
	}
}

// lasts wants the same owners for so long.
func (s *scene) lasts(o owners, since time.Time, span time.Duration) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(span); time.Now().Before(end); <-tick.C {
		cluster.Need(s.t)
		for _, v := range s.vips {
			for _, a := range v.addrs {
				now := time.Now()
				// Nobody else answered, and half the questions of each last second were answered: one may be late on a busy machine.
				seen := s.w.Seen(a, since, now)
				last := s.w.Seen(a, now.Add(-time.Second), now)
				if len(seen.All) > 1 || len(seen.All) == 1 && seen.All[0] != o[v.service].MAC() || last.Asked > 5 && last.Unanswered > last.Asked/2 {
					s.t.Fatalf("%s, %v: answered by %v, want %s alone; in the last second: %+v", v.service, a, names(seen.All), o[v.service].Name, last)
				}
			}
		}
	}
}
