package member

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/priority"
)

// scheduling is the scheduling class of the loop's thread.
type scheduling struct {
	class   priority.Class
	message string
	lower   func()
	tried   time.Time // the last attempt
}

// Health is how the kernel schedules the liveness thread, and whether the process stalled.
type Health struct {
	// Class is the scheduling class, empty before Run. Message is why it is not Deadline.
	Class, Message string
	// Stall is the kind of the first stall of the current episode, with a description; empty for none.
	Stall, StallMessage string
	lastStall           time.Time
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

// shares are the shares of a core that the loop may use before all other threads, best first. The kernel grants all
// threads of a machine together 95 % of its cores and refuses more (EBUSY): several nodes on one machine, as in kind,
// may get only the small share.
var shares = []time.Duration{5 * time.Millisecond, time.Millisecond}

const (
	shareOf = 20 * time.Millisecond
	// raiseRetry is the pause after the kernel has refused every share: another program may have ended, such as the
	// previous speaker, or a cpuset changed.
	raiseRetry = time.Second
)

// raise gives the loop's thread priority over others, and publishes the scheduling class obtained. With a class below
// Deadline the loop works, but may be late on a busy node; a later call retries.
func (l *loop) raise(now time.Time) {
	if l.class == priority.Deadline || !l.tried.IsZero() && now.Sub(l.tried) < raiseRetry {
		return
	}
	l.restore()
	l.tried = now
	message := ""
	class, lower, err := priority.Raise(shares[0], shareOf)
	for _, share := range shares[1:] {
		if class != priority.Deadline {
			lower()
			class, lower, err = priority.Raise(share, shareOf)
		}
	}
	l.lower = lower
	if class != priority.Deadline {
		remedy := "give the container CAP_SYS_NICE and every core (no cpuset)"
		if errors.Is(err, unix.EBUSY) {
			remedy = "other threads of the node have reserved the time that the kernel grants, 95 % of all cores; trying again"
		}
		message = err.Error() + ": " + remedy
	}
	if class == l.class && message == l.message {
		return
	}
	if class != priority.Deadline {
		l.options.Log.Warn("the liveness thread lacks scheduling class Deadline: on a busy node it may be late and lose VirtualIPs",
			"class", class, "error", message)
	} else if l.class != "" {
		l.options.Log.Info("the liveness thread has scheduling class Deadline", "thread", unix.Gettid())
	}
	l.class, l.message = class, message
	l.metrics.class(class)
	h := l.Health()
	h.Class, h.Message = string(class), message
	l.health.Store(&h)
	if l.options.Scheduled != nil {
		l.options.Scheduled(string(class), message)
	}
}

// restore undoes raise.
func (l *loop) restore() {
	if l.lower != nil {
		l.lower()
		l.lower = nil
	}
}

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
