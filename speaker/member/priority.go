package member

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/priority"
)

// shares are the shares of a core that the loop may use before all other threads, best first. The kernel grants all
// threads of a machine together 95 % of its cores and refuses more (EBUSY): several nodes on one machine, as in kind,
// may get only the small share.
var shares = []time.Duration{5 * time.Millisecond, time.Millisecond}

const (
	shareOf = 20 * time.Millisecond
	// raiseRetry is the pause after the kernel has refused every share: another program may have ended, or a cpuset
	// changed. At first it is raiseSoon if others have reserved the time, such as a speaker that still ends.
	raiseRetry, raiseSoon = 10 * time.Second, time.Second
	raiseSoonFor          = 30 * time.Second
)

// scheduling is the scheduling class of the loop's thread.
type scheduling struct {
	class   priority.Class
	message string
	lower   func()
	// began is the first attempt, tried the last one; taken is set if other reservations prevented it.
	began, tried time.Time
	taken        bool
}

// raise gives the loop's thread priority over others, and publishes the scheduling class obtained. With a class below
// Deadline the loop works, but may be late on a busy node; a later call retries.
func (l *loop) raise(now time.Time) {
	retry := raiseRetry
	if l.taken && now.Sub(l.began) < raiseSoonFor {
		retry = raiseSoon
	}
	if l.class == priority.Deadline || !l.tried.IsZero() && now.Sub(l.tried) < retry {
		return
	}
	l.restore()
	if l.tried = now; l.began.IsZero() {
		l.began = now
	}
	message := ""
	class, lower, err := priority.Raise(shares[0], shareOf)
	for _, share := range shares[1:] {
		if class != priority.Deadline {
			lower()
			class, lower, err = priority.Raise(share, shareOf)
		}
	}
	l.lower, l.taken = lower, errors.Is(err, unix.EBUSY)
	if class != priority.Deadline {
		remedy := "give the container CAP_SYS_NICE and every core (no cpuset)"
		if l.taken {
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
