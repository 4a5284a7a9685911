package member

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/view"
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

// Tick evaluates which nodes are silent and returns what to send now, valid until the next call. All datagrams that
// have arrived must be passed to Receive before.
func (c *Core) Tick(now time.Time, raw time.Duration) []Send {
	c.sends, c.arena, c.steady = c.sends[:0], c.arena[:0], time.Time{}
	if !c.begun {
		c.begun, c.began, c.observerSince, c.lastTick, c.lastHeartbeat, c.nextHeartbeat = true, raw, now, now, now, now
	}
	gap := now.Sub(c.lastTick)
	c.lastTick = now
	switch {
	case c.Outdated(now):
		c.Fence(now)
	case gap > c.profile.Interval:
		// Late: datagrams sent meanwhile may still be in the kernel. Silence counts only up to the last tick, so that
		// this also works if all ticks are late.
		c.evaluateAll(now, gap)
	default:
		c.evaluateAll(now, 0)
	}
	c.watchLinks(now, gap)
	c.watchObserver(now)
	c.compose(now, raw-c.began)
	c.count.Sent += uint64(len(c.sends))
	return c.sends
}

// Outdated reports whether this node must fence itself, because the others may have taken over: its last heartbeat is
// too old.
func (c *Core) Outdated(now time.Time) bool { return now.Sub(c.lastHeartbeat) > c.profile.fence() }

// LastHeartbeat returns the time of the last heartbeat.
func (c *Core) LastHeartbeat() time.Time { return c.lastHeartbeat }

// Fence drops this node's claims and outdated state, as after a stall: the others may have taken over.
func (c *Core) Fence(now time.Time) {
	c.fenced, c.forgive, c.steady = true, now, time.Time{}
	c.fences++
	c.count.Fences++
	c.observer, c.observerSince = true, now
	c.published = view.LocalState{
		Leaving: c.leaving, Direct: c.published.Direct, DirectIPv4Only: c.published.DirectIPv4Only,
	}
	c.updateJournal()
	c.out.own()
}

// watchObserver ends the observer phase, but not before claims decided in it are published: until then the answers are
// those before it.
func (c *Core) watchObserver(now time.Time) {
	if !c.observer {
		return
	}
	since := now.Sub(c.observerSince)
	if since < c.profile.Dead || c.fencesAcked < c.fences {
		return
	}
	if since < max(maxObserverTime, c.profile.Dead) {
		for _, p := range c.order {
			if p.paths[0].up && !p.synced() {
				return
			}
		}
	}
	c.observer, c.heartbeatNow = false, true
	c.updateJournal()
	c.out.own()
}

func (c *Core) evaluateAll(now time.Time, slack time.Duration) {
	expired := false
	for _, p := range c.order {
		if !c.retains(now, p) {
			c.evaluate(now, p, slack)
		}
		c.endReturn(now, p)
		expired = expired || !p.paths[0].last().IsZero() && c.expired(p) // SetPeers removes one never received
	}
	if expired {
		c.expire()
	}
}

// returnGrace is how long claims of a node that had counted as dead are not yielded to. It is sent a heartbeat when it
// is received again; from that, a paused node detects its pause and gives up everything.
const returnGrace = 200 * time.Millisecond

// endReturn ends the period after a node's return, but not before its claims are synced.
func (c *Core) endReturn(now time.Time, p *peer) {
	since := now.Sub(p.returned)
	if p.returned.IsZero() || since < returnGrace || !p.synced() && since < maxObserverTime {
		return
	}
	p.returned = time.Time{}
	for id := range p.claims.claims {
		c.out.vip(id)
	}
	c.out.node(p)
}

// evaluate evaluates on which paths a peer has been silent for longer than its dead time plus slack.
func (c *Core) evaluate(now time.Time, p *peer, slack time.Duration) {
	dead := p.deadAfter(c) + slack
	for at := range p.paths {
		w := &p.paths[at]
		if !w.noneAt.IsZero() {
			c.evaluateOneWay(now, p, at)
		}
		if !w.up {
			continue
		}
		last := w.last()
		if c.forgive.After(last) {
			last = c.forgive
		}
		limit := dead
		if at > 0 && len(p.retainedClaims) > 0 { // expires on all paths at once
			limit += 2 * c.profile.Interval
		}
		if now.Sub(last) < limit {
			if !w.byRelay && last == w.relayed && now.Sub(w.received) >= dead {
				w.byRelay = true
				c.count.Relayed++
			}
			continue
		}
		if c.allSilent(now, p, at, slack) {
			continue
		}
		if at == 0 && c.retainSilent(now, p) {
			return
		}
		w.up = false
		c.out.node(p)
		if at == 0 || c.ifaces[at].link {
			c.out.silent(now.Sub(w.received))
		}
		if at == 0 {
			p.died = true
			c.release(p)
		} else if c.ifaces[at].link {
			w.lost = true
		}
	}
	c.checkSilent(now, p)
}

// watchLinks finds the interfaces on which this node must not claim: it receives no node there although others receive
// each other, or no host answers it, or it has not listened long enough.
func (c *Core) watchLinks(now time.Time, gap time.Duration) {
	dead := c.profile.Dead
	for i := range c.ifaces {
		f := &c.ifaces[i]
		silence := now.Sub(f.silentSince()) - max(0, gap-c.profile.Interval)
		none := f.ever && silence >= dead
		c.heartbeatNow = c.heartbeatNow || none && !f.none
		f.none, f.silent = none, i > 0 && f.link && silence >= dead/2 && c.hasPeers()
		if i == 0 || !f.link {
			continue
		}
		if !f.ever && !f.never && now.Sub(f.since) >= dead {
			f.never = true
			for _, p := range c.order {
				c.out.node(p)
			}
		}
		receives := !f.last.IsZero() && now.Sub(f.last) < dead
		settled := receives && now.Sub(f.first) >= dead
		listening := now.Sub(f.since) < dead && !settled && c.hasPeers()
		// For a dead time and an interval, a node that was itself cut off still reports those that it lost. Meanwhile the
		// only other node on this side may be late, and nothing arrives here.
		switch {
		case receives && !settled && now.Sub(f.first) >= 2*c.profile.Interval && !c.receivedBack(i):
			f.cut = true // it received nothing, and counts as dead: others own what it owned
		case receives:
			f.cut = f.cut && !settled
		case f.answers.None && silence >= dead:
			f.cut = true
		case f.cut || now.Sub(f.last) >= dead+2*c.profile.Interval:
			if was := f.cut; was && !c.others(now, f) { // hosts answer again: speakers may follow
				f.since, listening = now, c.hasPeers()
			}
			f.cut = c.others(now, f)
		}
		// A node whose datagrams cannot be sent, and that no other receives, is dead for them.
		if is := f.cut || listening || f.unsent && receives && !c.receivedBack(i); is != f.isolated {
			f.isolated = is
			c.out.own()
		}
	}
}

// hasPeers reports whether there are other nodes at all.
func (c *Core) hasPeers() bool {
	for _, p := range c.order {
		if p.paths[0].up || len(p.addrs) > 0 {
			return true
		}
	}
	return false
}

// others reports whether a node that is alive by another path receives any node on a segment. A node that has just
// returned may be received there in a moment.
func (c *Core) others(now time.Time, f *iface) bool {
	for _, p := range c.order {
		if !p.paths[0].up || now.Sub(p.paths[0].last()) >= p.deadAfter(c) || p.away || !p.returned.IsZero() { // receives no node there
			continue
		}
		for _, s := range p.segments {
			if f.is(s.key) && s.received > 0 {
				return true
			}
		}
	}
	return false
}

// While all nodes are received and nothing changes, it does not matter when a routine heartbeat is read, as long as it
// is read before its sender's silence begins to matter. So the loop of a node in such a state wakes for its own
// heartbeats, and reads the others' then.

// Attentive reports whether every datagram must be read at once. If not, those for which Routine is true, and those to
// the group, may be read at the next call of Tick. All must be read before it.
func (c *Core) Attentive() bool {
	return !c.steady.After(c.lastTick) && !c.steadyUntil().After(c.lastTick)
}

// Next returns when Tick is due.
func (c *Core) Next() time.Time {
	next := c.lastTick.Add(c.profile.tick())
	if next.Before(c.nextHeartbeat) {
		next = later(next, c.steadyUntil())
	}
	return earlier(next, c.nextHeartbeat)
}

// Earliest returns a lower bound of Next, without a scan of the peers: a simulation of many nodes asks often.
func (c *Core) Earliest() time.Time {
	return earlier(c.nextHeartbeat, later(c.lastTick.Add(c.profile.tick()), c.steady))
}

// steadyUntil returns the time from which ticks are frequent: when the first silence becomes suspicious, unless a
// datagram arrives. It is not after the last tick if something is pending: one such peer is enough, and likely it is
// the same as before.
func (c *Core) steadyUntil() time.Time {
	var past time.Time
	if !c.begun || c.observer || c.fenced {
		return past
	}
	until := c.nextHeartbeat
	for i := range c.ifaces {
		f := &c.ifaces[i]
		if i > 0 && !f.link {
			continue
		}
		if f.isolated || f.cut {
			return past
		}
		// Until others is evaluated for the last time; see watchLinks.
		if f.ever && c.lastTick.Sub(f.last) < c.profile.Dead+3*c.profile.Interval {
			until = earlier(until, f.last.Add(c.profile.Dead/2))
		}
	}
	if c.unsteady < len(c.order) {
		until = earlier(until, c.peerSteadyUntil(c.order[c.unsteady]))
	}
	if !until.After(c.lastTick) {
		return until
	}
	for i, p := range c.order {
		if until = earlier(until, c.peerSteadyUntil(p)); !until.After(c.lastTick) {
			c.unsteady = i
			return until
		}
	}
	c.steady = until
	return until
}

// peerChanged keeps steady a lower bound after a datagram of a peer. Whatever else may make steadyUntil earlier lowers
// it, or sets it to zero.
func (c *Core) peerChanged(p *peer) { c.steady = earlier(c.steady, c.peerSteadyUntil(p)) }

// peerSteadyUntil is steadyUntil for one peer. A silent one has no effect.
func (c *Core) peerSteadyUntil(p *peer) (until time.Time) {
	if p.away || !p.returned.IsZero() || !p.retainedUntil.IsZero() || p.paths[0].up && !p.synced() {
		return time.Time{}
	}
	until = c.nextHeartbeat
	if !p.paths[0].up {
		return until
	}
	dead := p.deadAfter(c)
	until = earlier(until, p.unicast.Add(dead)) // else only the group reaches this node, and nothing there wakes the loop
	for at := range p.paths {
		if w := &p.paths[at]; w.up {
			until = earlier(until, w.received.Add(dead/2))
		}
	}
	return until
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

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
	c.Fence(now)
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
