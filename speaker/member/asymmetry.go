package member

import "encoding/binary"

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
		if i == 0 || !c.ifaces[i].link || c.counts(p, i) {
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
