package member

import "encoding/binary"

// Each beat says whom its sender does not hear and where, so that who is not heard by another one learns it, although he hears that one
// well.

const (
	// silentMost is how many such lines fit into one beat beside the longest name and all segments; the next beat goes on.
	silentMost = 24
	// unsaidMost is how many beats that were full of others a line outlasts: as many as 200 nodes on three segments take.
	unsaidMost = 32
)

// appendSilent says whom this node takes for dead on which segment. An observer cannot know.
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

// hearing takes in whether a node hears this one, of the message in c.msg. Nobody has heard an observer for long.
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
