package member

import (
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

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
		c.fence(now)
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

// Fence gives up what this node holds, as after a stall.
func (c *Core) Fence(now time.Time) { c.fence(now) }

// fence drops this node's claims and outdated state: the others may have taken over while it stalled.
func (c *Core) fence(now time.Time) {
	c.fenced, c.forgive, c.steady = true, now, time.Time{}
	c.fences++
	c.count.Fences++
	c.becomeObserver(now)
	c.published = view.LocalState{
		Leaving: c.leaving, Direct: c.published.Direct, DirectIPv4Only: c.published.DirectIPv4Only,
	}
	c.updateJournal()
	c.out.own()
}

// becomeObserver makes this node an observer.
func (c *Core) becomeObserver(now time.Time) { c.observer, c.observerSince = true, now }

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
