package member

import "time"

// wedgedAfter is far longer than one reconcile takes. Thousands of virtual servers at once take seconds.
const wedgedAfter = 20 * time.Second

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
		l.options.Log.Error("reconcile loop stalled: all VirtualIPs released", "for", idle)
	case l.wedged && idle < l.options.Wedged:
		l.options.Log.Info("reconcile loop resumed, observing the other nodes")
	}
	l.wedged = idle >= l.options.Wedged
	return began
}
