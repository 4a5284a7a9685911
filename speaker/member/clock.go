package member

import (
	"time"

	"golang.org/x/sys/unix"
)

// A virtual machine that is paused or migrated, and a machine that sleeps, finds its monotonic clock where it stopped:
// no clock of its own shows that time has passed, CLOCK_BOOTTIME and the wall clock neither, as long as nobody sets
// them. The other nodes' clocks went on. So each heartbeat carries how long its sender's process has run by its own
// clock, and the receiver compares that with its own. Both are read from a clock that is not slewed: see raw.

// clockWindow is how long the least delay of a node's heartbeats is looked for at a time, firstWindow how long at
// first. Clocks of computers drift by a millisecond or two in that time, and queues do not stay full for so long.
const (
	clockWindow = 5 * time.Second
	firstWindow = time.Second
)

// clock is what a node's heartbeats show of the two clocks.
type clock struct {
	// behind is by how much the other's clock is behind this one's, with the delay of the heartbeat of least delay: in
	// the present window, in the last one and in the one before. What is new is compared with that one, for what waited
	// while this node was paused comes step by step.
	behind [3]time.Duration
	since  time.Time // when the present window began
	known  bool      // there was one before
	// stood is for how long this node's clock stood still by the other's last heartbeat.
	stood time.Duration
}

// compare takes in a heartbeat of a process that has run for a time. It returns for how long this node's clock stood
// still lately, 0 if it did not: delay and loss make a clock look late, never early.
func (k *clock) compare(now time.Time, ran, ranHere time.Duration) (stood time.Duration) {
	behind := ranHere - ran
	switch age := now.Sub(k.since); {
	case k.since.IsZero() || age >= 2*clockWindow: // the first one, or the first for long
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

// clocks compares this node's clock with another's. If it stood still for so long that the others may have taken over,
// everything is given up, as after a standstill that it shows. Where others are heard whose clocks are known, one of
// them must say so, too: a single machine may have a bad oscillator.
func (c *Core) clocks(now time.Time, p *peer, ran, ranHere time.Duration) {
	p.clock.stood = p.clock.compare(now, ran, ranHere)
	if !c.showsStop(p) {
		return
	}
	others, agree := false, false
	for _, q := range c.order {
		if q != p && q.clock.known && c.hears(now, q, 0) {
			others, agree = true, agree || c.showsStop(q)
		}
	}
	if others && !agree {
		return
	}
	for _, q := range c.order { // what waited is still to be read: all begin again
		q.clock = clock{}
	}
	c.count.ClockStops++
	c.fence(now)
}

// showsStop tells whether a peer's last heartbeat showed that this node's clock stood still for too long. An interval
// between two turns is part of that time: this node may have been about to speak.
func (c *Core) showsStop(p *peer) bool { return p.clock.stood+c.profile.turn() > c.profile.fence() }

// raw is CLOCK_MONOTONIC_RAW: it stops with the machine as CLOCK_MONOTONIC does, but adjtimex(2) does not slew it, as a
// time service does by up to a tenth after a pause.
func raw() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &t); err != nil {
		panic(err) // Linux has it since 2.6.28
	}
	return time.Duration(t.Nano())
}
