package member

import "encoding/binary"

// Each heartbeat lists the nodes that its sender does not receive, per segment. So a node at the other end of an
// asymmetric link, which receives that sender well, detects it.

const (
	// silentMost is how many entries fit into one heartbeat with the longest name and all segments; the next one
	// continues.
	silentMost = 24
	// unsaidMost is how many heartbeats full of other entries an entry outlasts: as many as 200 nodes on three segments
	// take.
	unsaidMost = 32
)

// appendSilent lists the nodes that this node counts as dead, per segment. An observer has no such list yet.
func (c *Core) appendSilent(b []byte) []byte {
	if c.observer {
		return b
	}
	start, said := len(b), 0
	b, at := beginField(b, fieldSilent)
	pairs := len(c.order) * len(c.ifaces)
	for k := 0; k < pairs && said < silentMost; k++ {
		pair := (c.silentAt + k) % pairs
		p, i := c.order[pair/len(c.ifaces)], pair%len(c.ifaces)
		if i == 0 || !c.ifaces[i].link || c.counts(p, i) {
			continue
		}
		b = binary.BigEndian.AppendUint64(b, p.id)
		b = binary.BigEndian.AppendUint64(b, c.ifaces[i].keyFor(p))
		if said++; said == silentMost {
			c.silentAt = (pair + 1) % pairs
		}
	}
	if said == 0 {
		return b[:start]
	}
	return endField(b, at)
}

// hearing records from the message in c.msg whether a node receives this one. An observer ignores it: no node has
// received it for long.
func (c *Core) hearing(p *peer) {
	for i := 1; i < len(c.ifaces); i++ {
		w := &p.paths[i]
		before, said := w.deaf, false
		for _, s := range c.msg.silent {
			said = said || s.node == c.self && c.ifaces[i].is(s.segment)
		}
		switch {
		case said && !c.observer:
			w.deaf, w.unsaid = true, 0
		case len(c.msg.silent) >= silentMost && w.unsaid < unsaidMost:
			w.unsaid++
		default:
			w.deaf = false
		}
		if w.deaf != before {
			c.out.node(p)
		}
	}
}
