package speaker

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A node whose slots stay as they were, or differ otherwise, differs after ten seconds, and no longer once it has the
// same.
func TestAgreement(t *testing.T) {
	var a agreement
	now := time.Unix(1000, 0)
	compare := func(what string, after time.Duration, own uint64, others map[string]uint64, want ...string) {
		t.Helper()
		for end := now.Add(after); now.Before(end); {
			now = now.Add(500 * time.Millisecond)
			for name, digest := range others {
				if digest == own {
					delete(others, name)
				}
			}
			got := a.compare(now, own, others)
			if last := !now.Before(end); last && !slices.Equal(got, want) || !last && len(got) > len(want) {
				t.Errorf("%s: %v differ after %v, want %v", what, got, after-end.Sub(now), want)
			}
		}
	}
	compare("the same", time.Minute, 1, nil)
	compare("b is behind", 10*time.Second, 2, map[string]uint64{"b": 1})
	compare("b is behind for long", 500*time.Millisecond, 2, map[string]uint64{"b": 1}, "b")
	compare("c is ahead", 10*time.Second, 2, map[string]uint64{"b": 1, "c": 3}, "b")
	compare("c is ahead for long", 500*time.Millisecond, 2, map[string]uint64{"b": 1, "c": 3}, "b", "c")
	compare("this node is as c", 500*time.Millisecond, 3, map[string]uint64{"b": 1}, "b")
	compare("b is gone or the same", 500*time.Millisecond, 3, nil)
	compare("b differs again", 10*time.Second, 3, map[string]uint64{"b": 7})
	compare("b differs again for long", 500*time.Millisecond, 3, map[string]uint64{"b": 8}, "b")
}

// While the slots change five times a second, nodes that are half a second ahead or behind agree; one that is stuck
// does not.
func TestAgreementWhileSlotsChange(t *testing.T) {
	var a agreement
	r := rand.New(rand.NewPCG(1, 2))
	start := time.Unix(1000, 0)
	at := func(now time.Time) uint64 { return 1 + uint64(now.Sub(start)/(200*time.Millisecond)) }
	for now := start.Add(time.Second); now.Before(start.Add(5 * time.Minute)); now = now.Add(time.Duration(50+r.IntN(200)) * time.Millisecond) {
		others := map[string]uint64{}
		for name, digest := range map[string]uint64{
			"ahead": at(now.Add(500 * time.Millisecond)), "behind": at(now.Add(-500 * time.Millisecond)), "stuck": 0,
		} {
			if digest != at(now) {
				others[name] = digest
			}
		}
		got := a.compare(now, at(now), others)
		if late := now.Sub(start) > 12*time.Second; late && !slices.Equal(got, []string{"stuck"}) || !late && slices.Contains(got, "ahead") {
			t.Fatalf("after %v: %v differ", now.Sub(start), got)
		}
	}
	if len(a.own) > 100 {
		t.Errorf("%d digests are kept", len(a.own))
	}
}

// Nodes with other slots are logged, counted and reported until they have the same.
func TestSlotsDiffer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		r := start(t, f, &cluster{view: directView(), synced: true})
		defer r.stop()
		r.wantPlanned(t)
		want := func(when string, differ ...string) {
			t.Helper()
			f.mu.Lock()
			defer f.mu.Unlock()
			logged := strings.Count(r.log.String(), "nodes direct connections to other nodes than this one")
			if got := f.nodeStatus.SlotsDiffer; !slices.Equal(got, differ) ||
				testutil.ToFloat64(r.speaker.cfg.Metrics.differ) != float64(len(differ)) || logged != min(1, logged) {
				t.Errorf("%s: reported %v, want %v, logged %d times", when, got, differ, logged)
			}
		}
		own := r.speaker.desired.SlotsDigest
		r.detector.set(func(d *fixtureDetector) {
			if last := d.slots[len(d.slots)-1]; last != own || own == 0 {
				t.Errorf("published %#x, want %#x", last, own)
			}
			d.otherSlots = own + 1
		})
		time.Sleep(9 * time.Second)
		want("for some seconds")
		time.Sleep(2 * auditEvery)
		want("for long", "b")
		r.detector.set(func(d *fixtureDetector) { d.otherSlots = 0 })
		time.Sleep(2 * auditEvery)
		want("again the same")
		if !strings.Contains(r.log.String(), "all nodes direct connections to the same nodes") {
			t.Errorf("the end is not logged:\n%s", r.log.String())
		}
	})
}
