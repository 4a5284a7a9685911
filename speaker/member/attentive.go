package member

import "time"

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
