package member

import (
	"time"

	"golang.org/x/sys/unix"
)

// When a virtual machine is paused or migrated, or a machine sleeps, its monotonic clock continues where it stopped.
// None of its own clocks shows the lost time, CLOCK_BOOTTIME and CLOCK_REALTIME included, until they are set. The other
// nodes' clocks went on. So each heartbeat carries how long its sender's process has run by its own clock, and the
// receiver compares that with its own run time. Both are read from a clock that is not slewed: see raw.

// clockWindow is the window for the least delay of a node's heartbeats, firstWindow the first such window. Clocks
// diverge by a millisecond or two in that time, and queues do not stay full for so long.
const (
	clockWindow = 5 * time.Second
	firstWindow = time.Second
)

// clock compares another node's clock with this one's, by its heartbeats.
type clock struct {
	// behind is how far the other clock is behind this one, including the delay of the least delayed heartbeat: in the
	// present window, the last one and the one before. New values are compared with the oldest one, because the
	// heartbeats queued while this node was paused arrive step by step.
	behind [3]time.Duration
	since  time.Time // when the present window began
	known  bool      // there was a window before
	// stopped is how long this node's clock stopped, according to the other's last heartbeat.
	stopped time.Duration
}

// compare evaluates a heartbeat of a process that has run for ran. It returns how long this node's clock stopped
// recently, or 0: delay and loss make a clock appear late, never early.
func (k *clock) compare(now time.Time, ran, ranHere time.Duration) (stopped time.Duration) {
	behind := ranHere - ran
	switch age := now.Sub(k.since); {
	case k.since.IsZero() || age >= 2*clockWindow: // the first one, or the first after a long time
		*k = clock{behind: [3]time.Duration{behind, behind, behind}, since: now}
	case !k.known && age >= firstWindow:
		*k = clock{behind: [3]time.Duration{behind, k.behind[0], k.behind[0]}, since: now, known: true}
	case age >= clockWindow:
		*k = clock{behind: [3]time.Duration{behind, k.behind[0], k.behind[1]}, since: now, known: true}
	}
	k.behind[0] = min(k.behind[0], behind)
	if !k.known {
		return 0
	}
	return max(0, k.behind[2]-behind)
}

// clocks compares this node's clock with another's. If it stopped for so long that the others may have taken over,
// everything is given up, as after a visible stall. If other nodes with known clocks are received, one of them must
// confirm the stop: a single machine may have a bad oscillator.
func (c *Core) clocks(now time.Time, p *peer, ran, ranHere time.Duration) {
	p.clock.stopped = p.clock.compare(now, ran, ranHere)
	if !c.showsStop(p) {
		return
	}
	others, agree := false, false
	for _, q := range c.order {
		if q != p && q.clock.known && c.receivesRecently(now, q, 0) {
			others, agree = true, agree || c.showsStop(q)
		}
	}
	if others && !agree {
		return
	}
	for _, q := range c.order { // queued heartbeats are still to be read: all clocks restart
		q.clock = clock{}
	}
	c.count.ClockStops++
	c.fence(now)
}

// showsStop reports whether a peer's last heartbeat showed that this node's clock stopped for too long. The interval
// between two heartbeats is added, because this node may have been about to send.
func (c *Core) showsStop(p *peer) bool { return p.clock.stopped+c.profile.Interval > c.profile.fence() }

// raw reads CLOCK_MONOTONIC_RAW. It stops with the machine as CLOCK_MONOTONIC does, but adjtimex(2) does not slew it; a
// time service slews by up to a tenth after a pause.
func raw() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &t); err != nil {
		panic(err) // Linux has it since 2.6.28
	}
	return time.Duration(t.Nano())
}
