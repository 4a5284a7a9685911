package member

import "time"

// wedgedAfter is far more than a round of the speaker's loop takes. Thousands of virtual servers at once take seconds.
const wedgedAfter = 20 * time.Second

// watchdog finds out that who decides is stuck: then nobody would stop answering for what this node must give up, or program what changed.
type watchdog struct {
	kicked time.Time
	wedged bool
	// stood is when the whole process last went on after a standstill, in which nobody could look.
	stood time.Time
}

// watch kicks who decides if he has not looked for a while, and gives everything up if that does not help, as after a standstill. The
// fence lasts until he has looked. It tells whether that began now. Who has never looked holds nothing.
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
