package member

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

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
