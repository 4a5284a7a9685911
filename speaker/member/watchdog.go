package member

import "time"

// wedgedAfter is far longer than one reconcile takes. Thousands of virtual servers at once take seconds.
const wedgedAfter = 20 * time.Second

// watchdog detects a stuck reconcile loop, which would neither release what this node must give up nor program changes.
type watchdog struct {
	kicked time.Time
	wedged bool
	// stood is when the process last resumed after a stall of the whole process, in which the reconcile loop could not
	// run either.
	stood time.Time
}

// watch wakes the reconcile loop by Kick if it has not called Observe for a while. If that does not help, it gives
// everything up, as after a stall; the fence lasts until the next Observe. It reports whether that began now. A loop
// that has never called Observe holds nothing.
func (l *loop) watch(now time.Time) (began bool) {
	observed := l.observed.Load()
	if observed == 0 {
		return false
	}
	if now.Sub(l.start)-time.Duration(l.turned.Load()) > time.Duration(l.limit.Load()) {
		l.stood = now
	}
	idle := now.Sub(l.start) - time.Duration(observed)
	if since := now.Sub(l.stood); !l.wedged && since < idle {
		idle = since
	}
	if idle >= l.options.Wedged/4 && now.Sub(l.kicked) >= l.options.Wedged/4 {
		l.kicked = now
		l.options.Kick()
	}
	began = !l.wedged && idle >= l.options.Wedged
	switch {
	case began:
		l.core.Fence(now)
		l.metrics.wedged.Inc()
		l.options.Log.Error("the speaker's loop is stuck: all VirtualIPs given up", "for", idle)
	case l.wedged && idle < l.options.Wedged:
		l.options.Log.Info("the speaker's loop turns again: the others are heard first")
	}
	l.wedged = idle >= l.options.Wedged
	return began
}
