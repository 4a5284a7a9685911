package member

import (
	"encoding/binary"
	"iter"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// missing is a node that requests evidence of another on any path: it receives none of its datagrams. They are passed
// on to it for a while, so that it has that node's claims, and each has the other's requests.
type missing struct {
	by    *peer
	until time.Time
}

// Relay evidence, after SWIM's indirect probes (Das et al. 2002, section 3.1): after half its dead time of silence,
// other nodes receive a request about a node, because they may receive it although this node does not.

// checkSilent requests evidence of silent peers, per path: from the peer itself, and up to three others that are
// received there.
func (c *Core) checkSilent(now time.Time, p *peer) {
	if p.challengeable(c, now) && !p.ended && !p.challenged.IsZero() && now.Sub(p.challenged) >= c.profile.Interval &&
		now.Sub(p.paths[0].relayRequested) >= c.profile.Interval {
		p.paths[0].relayRequested = now
		c.requestRelay(now, p, 0)
	}
	// Others may receive a Node that never was received here, or its next process. A new process receives most itself.
	never := p.paths[0].last().IsZero() || p.ended
	if never && (len(p.addrs) == 0 || now.Sub(c.observerSince) < 2*c.profile.Interval || !c.receivesAny(now, p, 0)) {
		return
	}
	for at := range p.paths {
		w := &p.paths[at]
		pause := c.profile.Interval
		if w.received.IsZero() && w.relayed.IsZero() { // never received there: it may be absent, or only others receive it
			if at > 0 && !c.expects(p, at) || !never && (at == 0 || !p.paths[0].up || now.Sub(p.first) < c.profile.Dead/2) {
				continue
			}
			if !c.observer {
				pause = maxObserverTime
			}
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
	for q := range c.helpers(now, p, at) {
		q.relayRequests = append(q.relayRequests, about{p.id, f.keyFor(q)})
		c.count.RelayRequests++
	}
}

// helpers returns up to three random peers that may receive p on an interface.
func (c *Core) helpers(now time.Time, p *peer, at int) iter.Seq[*peer] {
	return func(yield func(*peer) bool) {
		start := c.random.IntN(len(c.order))
		direct := c.receivesAny(now, p, at)
		for i, n := 0, 0; i < len(c.order) && n < helpers; i++ {
			q := c.order[(start+i)%len(c.order)]
			if q == p || q.away || !q.paths[at].up || !q.paths[0].up || !q.from.IsValid() || direct && !c.receivesRecently(now, q, at) {
				continue
			}
			if n++; !yield(q) {
				return
			}
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

// answerRelayRequest answers a request from what this node received itself. proved is set if the request is no
// recording.
func (c *Core) answerRelayRequest(now time.Time, from *peer, a about, proved bool) {
	if a.node == c.self {
		from.probesSelf, c.urgent = true, true
		if a.segment == 0 && now.Sub(from.recruited) >= c.profile.Interval/2 {
			from.recruited = now
			for q := range c.helpers(now, from, 0) {
				q.missed = append(q.missed, from.id)
			}
		}
		return
	}
	p := c.byID[a.node]
	if p == nil || p.away { // each node probes its kernel itself
		return
	}
	if a.segment == 0 && proved {
		p.missedBy = slices.DeleteFunc(p.missedBy, func(m missing) bool { return m.by == from })
		p.missedBy = append(p.missedBy, missing{from, now.Add(2 * c.profile.Interval)})
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
	if p.first.IsZero() {
		p.first = when
	}
	if !w.up && age < p.deadAfter(c) {
		w.up, c.steady = true, time.Time{}
		c.out.node(p)
	}
}

// passOn queues the datagram in c.msg for the nodes that miss its sender, unless it is about other nodes.
func (c *Core) passOn(now time.Time, p *peer, data []byte) {
	if len(p.missedBy) == 0 {
		return
	}
	p.missedBy = slices.DeleteFunc(p.missedBy, func(m missing) bool { return !now.Before(m.until) })
	m := &c.msg
	if m.passedOn != nil || len(m.relayRequests)+len(m.relays) > 0 || !p.passed.fresh(m.sequence) {
		return
	}
	p.passed.add(m.sequence)
	data = slices.Clone(data)
	for _, m := range p.missedBy {
		if len(m.by.passedOn) < answersPerRequest {
			m.by.passedOn, c.urgent = append(m.by.passedOn, data), true
		}
	}
}

// sendPassedOn sends a peer the datagrams of others that it misses, as far as they fit.
func (c *Core) sendPassedOn(p *peer) {
	for _, data := range p.passedOn {
		b, at := beginField(c.appendHello(c.begin(), 0), fieldPassedOn)
		if len(b)+len(data)+tagSize <= MaxDatagram {
			c.to(p, c.finish(endField(append(b, data...), at)))
		}
	}
	clear(p.passedOn)
	p.passedOn = p.passedOn[:0]
}

// deadAfter is the silence after which the node is dead: its own dead time, as advertised.
func (p *peer) deadAfter(c *Core) time.Duration {
	if p.dead == 0 {
		return c.profile.Dead
	}
	return p.dead
}

// synced reports whether all claims of the node are known. Of one that is alive by relay nothing may have arrived yet.
func (p *peer) synced() bool { return p.incarnation != 0 && p.claims.synced() }

// reachable reports whether there is an address to send to.
func (p *peer) reachable() bool { return p.from.IsValid() || len(p.addrs) > 0 }

// Each heartbeat lists the nodes that its sender does not receive, per segment. So a node at the other end of an
// asymmetric link, which receives that sender well, detects it.

const (
	// maxSilentEntries is how many entries fit into one heartbeat with the longest name and all segments; the next one
	// continues.
	maxSilentEntries = 24
	// maxUnreported is how many heartbeats full of other entries an entry outlasts: as many as 200 nodes on three
	// segments take.
	maxUnreported = 32
)

// appendSilent lists the nodes that this node counts as dead, per segment. An observer has no such list yet.
func (c *Core) appendSilent(b []byte) []byte {
	if c.observer {
		return b
	}
	start, written := len(b), 0
	b, at := beginField(b, fieldSilent)
	pairs := len(c.order) * len(c.ifaces)
	for k := 0; k < pairs && written < maxSilentEntries; k++ {
		pair := (c.silentAt + k) % pairs
		p, i := c.order[pair/len(c.ifaces)], pair%len(c.ifaces)
		if i == 0 || !c.ifaces[i].link || c.counts(p, i) && !p.paths[i].oneWay {
			continue
		}
		b = binary.BigEndian.AppendUint64(b, p.id)
		b = binary.BigEndian.AppendUint64(b, c.ifaces[i].keyFor(p))
		if written++; written == maxSilentEntries {
			c.silentAt = (pair + 1) % pairs
		}
	}
	if written == 0 {
		return b[:start]
	}
	return endField(b, at)
}

// recordAsymmetry records from the message in c.msg whether a node receives this one. An observer ignores it: no node
// has received it for long.
func (c *Core) recordAsymmetry(p *peer) {
	for i := 1; i < len(c.ifaces); i++ {
		w := &p.paths[i]
		before, listsThis := w.asymmetric, false
		for _, s := range c.msg.silent {
			listsThis = listsThis || s.node == c.self && c.ifaces[i].is(s.segment)
		}
		switch {
		case listsThis && !c.observer:
			w.asymmetric, w.unreported = true, 0
		case len(c.msg.silent) >= maxSilentEntries && w.unreported < maxUnreported:
			w.unreported++
		default:
			w.asymmetric = false
		}
		if w.asymmetric != before {
			c.out.node(p)
		}
	}
}

// recordOneWay records from a peer's segments where its link is one-way: it reports that it receives no node, while
// others receive one another. It stays so for a dead time after its last such report: it has detected that by then, and
// released what others own now. An observer has received no node yet.
func (c *Core) recordOneWay(now time.Time, p *peer) {
	for i := range p.paths {
		w := &p.paths[i]
		key, none := c.ifaces[i].keyFor(p), false
		for _, s := range p.segments {
			none = none || s.key == key && s.received == 0 && p.flags&flagObserver == 0
		}
		if w.none = none; none {
			w.noneAt = now
		}
		c.evaluateOneWay(now, p, i)
	}
}

// evaluateOneWay evaluates whether the link of a peer is one-way.
func (c *Core) evaluateOneWay(now time.Time, p *peer, at int) {
	w := &p.paths[at]
	oneWay := at > 0 && !w.noneAt.IsZero() && now.Sub(w.noneAt) < p.deadAfter(c) && w.up &&
		slices.ContainsFunc(c.order, func(q *peer) bool {
			return q != p && c.receivesRecently(now, q, at) && !q.paths[at].none
		})
	if oneWay == w.oneWay {
		return
	}
	w.oneWay = oneWay
	c.out.node(p)
	if !oneWay && w.up {
		c.returns(p, at)
		p.returned, c.heartbeatNow, c.steady = now, true, time.Time{}
	}
}

// receivedBack reports whether a peer that this node receives on an interface does not list it as dead there.
func (c *Core) receivedBack(at int) bool {
	return slices.ContainsFunc(c.order, func(p *peer) bool { return p.paths[at].up && !p.paths[at].asymmetric })
}

// SetAnswers sets what hosts answer on the interfaces that Received returned as silent. Once it was called, the death of
// all nodes there is not believed without an answer; see allSilent.
func (c *Core) SetAnswers(answers map[string]view.Answers) {
	c.asks = true
	for i := range c.ifaces {
		f := &c.ifaces[i]
		if now := answers[f.name]; now != f.answers {
			f.answers, c.steady = now, time.Time{}
		}
	}
}

// allSilent reports whether a node is silent where all are, and no host has answered since: then this node may be cut off
// itself, and would take the addresses of the others. So it counts as received for a dead time after the last datagram of
// any node; for two if it is unknown by then whether hosts answer, as on a node whose processes wait for a core.
func (c *Core) allSilent(now time.Time, p *peer, at int, slack time.Duration) bool {
	for i := range c.ifaces {
		f := &c.ifaces[i]
		if !c.asks || !f.silent || !p.paths[i].up || at != 0 && at != i || f.answers.First.After(f.silentSince()) {
			continue
		}
		most := 2 * c.profile.Dead
		if f.answers.None {
			most = c.profile.Dead
		}
		if now.Sub(f.silentSince()) < most+slack {
			return true
		}
	}
	return false
}
