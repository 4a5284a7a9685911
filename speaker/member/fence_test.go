package member

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/view"
)

// A stalled loop: no answers are given, claims decided before the fence are no longer advertised, later ones are.
func TestDetectorFence(t *testing.T) {
	space := netspace.New(t)
	wakes := make(chan struct{}, 1)
	var log bytes.Buffer
	metrics := prometheus.NewRegistry()
	d, err := New(Options{
		Node: "a", Keys: [][]byte{bytes.Repeat([]byte("k"), 32)}, Profile: Fast, Metrics: metrics, Log: slog.New(slog.NewTextHandler(&log, nil)), Wedged: time.Hour,
		Wake: func() {
			select {
			case wakes <- struct{}{}:
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
			case <-wakes:
			case <-deadline:
				t.Fatal("not yet " + what)
			}
		}
	}
	observer := func() bool { m, _, _ := d.Observe(); return m.Observer }
	wait("no observer", func() bool { return !observer() })
	held := view.LocalState{Claims: map[string]view.Claim{"web": {State: view.Held}}}
	d.Publish(held)
	wait("fresh", d.Fresh)

	d.mu.Lock() // the loop needs it at each tick
	wait("stale", func() bool { return !d.Fresh() })
	wait("a fence", func() bool { return int64(time.Since(d.start))-d.heartbeat.Load() > 2*d.limit.Load() })
	d.mu.Unlock()
	wait("fenced", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.results.fences == 1 })
	d.Publish(held) // decided before the fence was observed
	before := d.heartbeat.Load()
	wait("a tick", func() bool { return d.heartbeat.Load() > before })
	if d.Fresh() {
		t.Error("fresh although the fence was not observed")
	}
	// It stays an observer until the reconcile loop has observed the fence, however long that takes.
	wait("the end of the phase", func() bool { return d.heartbeat.Load()-before > int64(3*d.options.Profile.Dead) })
	if d.Fresh() || !observer() {
		t.Error("no observer after a fence, or fresh")
	}
	// Planning takes long: until the claims decided after the fence are published, nothing is answered.
	before = d.heartbeat.Load()
	wait("the end of a plan", func() bool { return d.heartbeat.Load()-before > int64(3*d.options.Profile.Dead) })
	if d.Fresh() || !observer() {
		t.Error("no observer before the publication after a fence, or fresh")
	}
	d.Publish(view.LocalState{})
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
		if sum := f.GetMetric()[0].GetHistogram().GetSampleSum(); f.GetName() == "ironlb_liveness_tick_late_seconds" && (sum <= 0 || sum > 60) {
			t.Errorf("late by %v seconds in all", sum)
		}
	}
	if strings.Count(log.String(), "liveness loop stalled") != 1 {
		t.Errorf("logged %s", log.String())
	}
	if h := d.Health(); h.Stall != LivenessLoopStalled || h.StallMessage == "" {
		t.Errorf("health %+v", h)
	}
}

// The reconcile loop stalls: it is woken, then everything is given up until it observes again.
func TestDetectorWedged(t *testing.T) {
	space := netspace.New(t)
	var log bytes.Buffer
	var wakes atomic.Int64
	metrics := prometheus.NewRegistry()
	d, err := New(Options{
		Node: "a", Keys: [][]byte{bytes.Repeat([]byte("k"), 32)}, Profile: Standard, Metrics: metrics, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Wake: func() { wakes.Add(1) }, Wedged: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
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
			case <-deadline:
				t.Fatal("not yet " + what)
			}
		}
	}
	// Before its first Observe, the loop cannot be stuck.
	wait("turning", d.Fresh)
	wait("long in use", func() bool { return time.Since(d.start) > 2*d.options.Wedged })
	wait("fresh, also if nothing was observed", d.Fresh)
	observes := func() bool { // after a stall of the process, once published
		m, _, _ := d.Observe()
		if m.Observer {
			d.Publish(view.LocalState{})
		}
		return !m.Observer
	}
	wait("no observer", observes)
	d.Publish(view.LocalState{Claims: map[string]view.Claim{"web": {State: view.Held}}})
	stuck, before := time.Now(), wakes.Load()
	wait("given up", func() bool { return !d.Fresh() })
	if took := time.Since(stuck); took < d.options.Wedged-100*time.Millisecond || wakes.Load()-before < 2 {
		t.Errorf("given up after %v and %d wakes", took, wakes.Load()-before)
	}
	d.Publish(view.LocalState{Claims: map[string]view.Claim{"web": {State: view.Held}}}) // what the loop was about to advertise
	lastTick := d.heartbeat.Load()
	wait("some ticks", func() bool { return d.heartbeat.Load()-lastTick > int64(2*d.options.Profile.Dead) })
	if d.Fresh() {
		t.Error("fresh although Observe was not called")
	}
	if m, _, _ := d.Observe(); !m.Observer {
		t.Error("no observer after it was stuck")
	}
	wait("no observer any more", observes)
	wait("fresh again", d.Fresh)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if h := d.Health(); h.Stall != ReconcileLoopStalled || h.Class == "" {
		t.Errorf("health %+v", h)
	}
	if got := testutil.ToFloat64(d.metrics.wedged); got != 1 {
		t.Errorf("%v stalls", got)
	}
	if text := log.String(); strings.Count(text, "reconcile loop stalled") != 1 || strings.Count(text, "reconcile loop resumed") != 1 || strings.Count(text, "\n") != 2 {
		t.Errorf("logged %s", text)
	}
}

// A stall of the process, longer than the wedge limit, does not count as a stalled loop: the reconcile loop could
// not run either.
func TestStallIsNotWedged(t *testing.T) {
	var log bytes.Buffer
	d, err := New(Options{Node: "a", Keys: [][]byte{bytes.Repeat([]byte("k"), 32)}, Profile: Standard, Log: slog.New(slog.NewTextHandler(&log, nil)), Wake: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	l := &loop{Detector: d}
	d.limit.Store(int64(d.core.FenceAfter()))
	at := d.start.Add(time.Minute)
	tick := func(after time.Duration) bool {
		at = at.Add(after)
		began := l.watch(at)
		d.heartbeat.Store(int64(at.Sub(d.start)))
		return began
	}
	d.observed.Store(int64(time.Minute))
	d.heartbeat.Store(int64(time.Minute))
	if tick(time.Minute) || d.core.Fences() != 0 || log.Len() > 0 {
		t.Errorf("stuck after a standstill: %s", log.String())
	}
	for range 399 { // a stall that ended is no reason, however long no Observe follows
		if tick(50 * time.Millisecond) {
			t.Fatalf("stuck %v after the standstill", at.Sub(d.start)-2*time.Minute)
		}
	}
	if !tick(50*time.Millisecond) || d.core.Fences() != 1 {
		t.Error("not stuck after 20 s")
	}
}

// Claims decided before a fence, or before a stall at the end, are not retained.
func TestFenceEndsRetention(t *testing.T) {
	for name, harm := range map[string]func(*loop){
		"none":            func(*loop) {},
		"fence":           func(l *loop) { l.core.Fence(time.Now()) },
		"fence before it": func(l *loop) { l.core.Fence(time.Now()); l.Retain(time.Minute) },
		"standstill":      func(l *loop) { l.heartbeat.Store(int64(time.Since(l.start) - time.Minute)) },
	} {
		t.Run(name, func(t *testing.T) {
			d, err := New(Options{
				Node: "a", Keys: [][]byte{bytes.Repeat([]byte("k"), 32)}, Profile: Standard, Metrics: prometheus.NewRegistry(),
				Log: slog.New(slog.DiscardHandler), Wake: func() {},
			})
			if err != nil {
				t.Fatal(err)
			}
			l := &loop{Detector: d}
			d.heartbeat.Store(int64(time.Since(d.start)))
			l.Retain(time.Minute)
			l.applyInbox()
			harm(l)
			l.goodbye()
			if retained := l.retained > 0; retained != (name == "none") {
				t.Errorf("retained for %v", l.retained)
			}
		})
	}
}

// The first stall of an episode is shown until five minutes after the last one.
func TestStallEpisode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loop{Detector: &Detector{options: Options{Log: slog.New(slog.DiscardHandler)}}}
		l.health.Store(&Health{Class: "Nice", Message: "refused"})
		l.stalled(time.Now(), ClockStopped, "stopped")
		time.Sleep(stallEpisode - time.Second)
		l.stalled(time.Now(), LivenessLoopStalled, "stalled")
		time.Sleep(stallEpisode - time.Second)
		if h := l.Health(); h.Stall != ClockStopped || h.StallMessage != "stopped" || h.Class != "Nice" {
			t.Errorf("in the episode: %+v", h)
		}
		time.Sleep(time.Second)
		if h := l.Health(); h != (Health{Class: "Nice", Message: "refused"}) {
			t.Errorf("after the episode: %+v", h)
		}
		l.stalled(time.Now(), LivenessLoopStalled, "stalled")
		if h := l.Health(); h.Stall != LivenessLoopStalled {
			t.Errorf("another episode: %+v", h)
		}
	})
}
