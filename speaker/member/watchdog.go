package member

import "time"

// wedgedAfter is far longer than one reconcile takes. Thousands of virtual servers at once take seconds.
const wedgedAfter = 20 * time.Second

// stallEpisode is how long after the last stall the next one counts as another episode.
const stallEpisode = 5 * time.Minute

// The kinds of stalls after which this node releases everything.
const (
	LivenessLoopStalled  = "LivenessLoopStalled"
	ReconcileLoopStalled = "ReconcileLoopStalled"
	ClockStopped         = "ClockStopped"
)

// Health is how the kernel schedules the liveness thread, and whether the process stalled.
type Health struct {
	// Class is the scheduling class, empty before Run. Message is why it is not Deadline.
	Class, Message string
	// Stall is the kind of the first stall of the current episode, with a description; empty for none.
	Stall, StallMessage string
	lastStall           time.Time
}

// Health returns the health.
func (d *Detector) Health() Health {
	h := d.health.Load()
	if h == nil {
		return Health{}
	}
	if time.Since(h.lastStall) >= stallEpisode {
		return Health{Class: h.Class, Message: h.Message}
	}
	return *h
}

// stalled records and logs a stall.
func (l *loop) stalled(now time.Time, kind, text string, args ...any) {
	l.options.Log.Warn(text+": all VirtualIPs released, observing the other nodes", args...)
	h := l.Health()
	if h.lastStall = now; h.Stall == "" {
		h.Stall, h.StallMessage = kind, text
	}
	l.health.Store(&h)
}

// watchdog detects a stalled reconcile loop, which would neither release what this node must give up nor program
// changes.
type watchdog struct {
	lastWake time.Time
	wedged   bool
	// resumed is when the process last resumed after a stall of the process, in which the reconcile loop could
	// not run either.
	resumed time.Time
}

// watch wakes the reconcile loop by Wake if it has not called Observe for a while. If that does not help, it gives
// everything up, as after a stall; the fence lasts until the next Publish. It reports whether that began now. A loop
// that has never called Observe holds nothing.
func (l *loop) watch(now time.Time) (began bool) {
	observed := l.observed.Load()
	if observed == 0 {
		return false
	}
	if now.Sub(l.start)-time.Duration(l.heartbeat.Load()) > time.Duration(l.limit.Load()) {
		l.resumed = now
	}
	idle := now.Sub(l.start) - time.Duration(observed)
	if since := now.Sub(l.resumed); !l.wedged && since < idle {
		idle = since
	}
	if idle >= l.options.Wedged/4 && now.Sub(l.lastWake) >= l.options.Wedged/4 {
		l.lastWake = now
		l.options.Wake()
	}
	began = !l.wedged && idle >= l.options.Wedged
	switch {
	case began:
		l.core.Fence(now)
		l.metrics.wedged.Inc()
		l.stalled(now, ReconcileLoopStalled, "reconcile loop stalled", "for", idle)
	case l.wedged && idle < l.options.Wedged:
		l.options.Log.Info("reconcile loop resumed, observing the other nodes")
	}
	l.wedged = idle >= l.options.Wedged
	return began
}
