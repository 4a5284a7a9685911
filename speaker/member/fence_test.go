package member

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/plan"
)

// A loop that stands still: no answer may be given, what was decided before is not said any more, what is decided after is.
func TestDetectorFence(t *testing.T) {
	space := netspace.New(t)
	kicks := make(chan struct{}, 1)
	var log bytes.Buffer
	metrics := prometheus.NewRegistry()
	d, err := New(Options{
		Node: "a", Keys: [][]byte{bytes.Repeat([]byte("k"), 32)}, Profile: Fast, Metrics: metrics, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Kick: func() {
			select {
			case kicks <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if d.Fresh() {
		t.Error("fresh before it runs")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- space.Do(func() error { return d.Run(ctx) }) }()
	deadline := time.After(20 * time.Second)
	wait := func(what string, ok func() bool) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for !ok() {
			select {
			case <-tick.C:
			case <-kicks:
			case <-deadline:
				t.Fatal("not yet " + what)
			}
		}
	}
	observer := func() bool { m, _, _ := d.Observe(); return m.Observer }
	wait("no observer", func() bool { return !observer() })
	held := plan.Word{Claims: map[string]plan.Claim{"web": {State: plan.Held}}}
	d.Say(held)
	wait("fresh", d.Fresh)

	d.mu.Lock() // the loop needs it at each turn
	wait("stale", func() bool { return !d.Fresh() })
	wait("a fence", func() bool { return int64(time.Since(d.start))-d.turned.Load() > 2*d.limit.Load() })
	d.mu.Unlock()
	wait("fenced", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.box.fences == 1 })
	d.Say(held) // decided without having seen the fence
	before := d.turned.Load()
	wait("a turn", func() bool { return d.turned.Load() > before })
	if d.Fresh() {
		t.Error("fresh though nobody has seen the fence")
	}
	// It stays an observer, however long it takes until who decides has looked.
	wait("the end of the phase", func() bool { return d.turned.Load()-before > int64(3*d.options.Profile.Dead) })
	if d.Fresh() || !observer() {
		t.Error("no observer after a fence, or fresh")
	}
	// Nothing need be said then: the phase ends, and with it the fence.
	wait("no observer", func() bool { return !observer() })
	wait("fresh again", d.Fresh)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if sum := f.GetMetric()[0].GetHistogram().GetSampleSum(); f.GetName() == "ironlb_liveness_turn_late_seconds" && (sum <= 0 || sum > 60) {
			t.Errorf("late by %v seconds in all", sum)
		}
	}
	if !strings.Contains(log.String(), "stood still") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("logged %s", log.String())
	}
}
