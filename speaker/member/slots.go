package member

import "encoding/binary"

// SetSlots sets the digest of this node's slots of direct forwarding. The next heartbeat that is due carries it: with
// many nodes and endpoints it changes often.
func (c *Core) SetSlots(digest uint64) { c.slots, c.hasSlots = digest, true }

// Slots returns the digests of the other nodes' slots, of those that differ from this node's; nil if there are none. A
// node counts if it is alive and observes no more, and can receive the same through tunnels as this node: its slots
// should be equal.
func (c *Core) Slots() map[string]uint64 {
	if !c.hasSlots || c.observer || !c.published.Direct {
		return nil
	}
	var out map[string]uint64
	for _, p := range c.order {
		alike := p.direct && p.directIPv4Only == c.published.DirectIPv4Only
		if !p.hasSlots || p.slots == c.slots || !alike || !p.paths[0].up || p.away || p.flags&(flagObserver|flagLeaving) != 0 {
			continue
		}
		if out == nil {
			out = map[string]uint64{}
		}
		out[p.name] = p.slots
	}
	return out
}

func (c *Core) appendSlots(b []byte) []byte {
	if !c.hasSlots {
		return b
	}
	b, at := beginField(b, fieldSlots)
	return endField(binary.BigEndian.AppendUint64(b, c.slots), at)
}
