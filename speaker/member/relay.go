package member

import (
	"slices"
	"time"
)

// Relay evidence, after SWIM's indirect probes (Das et al. 2002, section 3.1): after half its dead time of silence,
// other nodes receive a request about a node, because they may receive it although this node does not.

// checkSilent requests evidence of silent peers, per path: from the peer itself, and up to three others that are
// received there.
func (c *Core) checkSilent(now time.Time, p *peer) {
	if p.challengeable(c, now) && !p.ended && now.Sub(p.paths[0].relayRequested) >= c.profile.Interval {
		p.paths[0].relayRequested = now
		c.requestRelay(now, p, 0)
	}
	if p.ended || p.first.IsZero() {
		return
	}
	for at := range p.paths {
		w := &p.paths[at]
		pause := c.profile.Interval
		if w.received.IsZero() && w.relayed.IsZero() { // never received there: it may be absent, or only others receive it
			if at == 0 || !c.expects(p, at) || !p.paths[0].up || now.Sub(p.first) < c.profile.Dead/2 {
				continue
			}
			pause = maxObserverTime
		} else if now.Sub(w.received) < p.deadAfter(c)/2 {
			continue
		} else if !w.up {
			pause = maxObserverTime
		}
		if at > 0 && !c.ifaces[at].link || now.Sub(w.relayRequested) < pause {
			continue
		}
		w.relayRequested = now
		c.requestRelay(now, p, at)
	}
}

// expects reports whether a peer may be received on an interface: others are, or it advertises that segment. Where the
// group does not reach this node, a peer is received only after a request, which it answers by broadcast.
func (c *Core) expects(p *peer, at int) bool {
	f := &c.ifaces[at]
	return f.ever || slices.ContainsFunc(p.segments, func(s segment) bool { return f.is(s.key) })
}

// requestRelay queues a request about p on an interface for the peers that may answer it.
func (c *Core) requestRelay(now time.Time, p *peer, at int) {
	f := &c.ifaces[at]
	if p.reachable() {
		p.relayRequests = append(p.relayRequests, about{p.id, f.keyFor(p)}) // answers at once if it can
	}
	start := 0
	if len(c.order) > 0 {
		start = c.random.IntN(len(c.order))
	}
	direct := c.receivesAny(now, p, at)
	requested := 0
	for i := range c.order {
		q := c.order[(start+i)%len(c.order)]
		if q == p || q.away || !q.paths[at].up || !q.paths[0].up || !q.from.IsValid() || direct && !c.receivesRecently(now, q, at) {
			continue
		}
		q.relayRequests = append(q.relayRequests, about{p.id, f.keyFor(q)})
		c.count.RelayRequests++
		if requested++; requested == helpers {
			return
		}
	}
}

// receivesRecently reports whether this node itself has recently received a peer on an interface. If there is such a
// peer, only such peers are witnesses there: in a split network, the nodes of the other side receive each other, and
// report that by another path.
func (c *Core) receivesRecently(now time.Time, p *peer, at int) bool {
	return p.paths[at].up && !p.away && now.Sub(p.paths[at].received) < p.deadAfter(c)/2
}

// receivesAny reports whether this node itself receives another peer on an interface.
func (c *Core) receivesAny(now time.Time, but *peer, at int) bool {
	for _, q := range c.order {
		if q != but && c.receivesRecently(now, q, at) {
			return true
		}
	}
	return false
}

// answerRelayRequest answers a request from what this node received itself.
func (c *Core) answerRelayRequest(now time.Time, from *peer, a about) {
	if a.node == c.self {
		from.probesSelf, c.urgent = true, true
		return
	}
	p := c.byID[a.node]
	if p == nil || p.away { // each node probes its kernel itself
		return
	}
	for at := range p.paths {
		w := &p.paths[at]
		if !c.ifaces[at].is(a.segment) || w.received.IsZero() || at > 0 && !c.ifaces[at].link {
			continue
		}
		if age := now.Sub(w.received); age < p.deadAfter(c) {
			from.relayAnswers = append(from.relayAnswers, relayEvidence{a, age})
			c.urgent = true
			return
		}
	}
}

// recordRelay records that another node has received a peer.
func (c *Core) recordRelay(now time.Time, s relayEvidence) {
	p := c.byID[s.node]
	if p == nil || p.ended {
		return
	}
	when := now.Add(-s.age)
	for at := range p.paths {
		w := &p.paths[at]
		if !c.ifaces[at].is(s.segment) || at > 0 && !c.ifaces[at].link {
			continue
		}
		c.relay(p, w, when, s.age)
		c.relay(p, &p.paths[0], when, s.age)
	}
}

func (c *Core) relay(p *peer, w *path, when time.Time, age time.Duration) {
	if !when.After(w.last()) {
		return
	}
	w.relayed = when
	if !w.up && age < p.deadAfter(c) {
		w.up, c.steady = true, time.Time{}
		c.out.node(p)
	}
}

// deadAfter is the silence after which the node is dead: its own dead time, as advertised.
func (p *peer) deadAfter(c *Core) time.Duration {
	if p.dead == 0 {
		return c.profile.Dead
	}
	return p.dead
}

// reachable reports whether there is an address to send to.
func (p *peer) reachable() bool { return p.from.IsValid() || len(p.addrs) > 0 }
