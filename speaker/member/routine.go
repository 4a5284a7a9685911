package member

import (
	"bytes"
	"slices"
	"time"
)

// A heartbeat that only repeats what earlier ones advertised is routine: its flag allows the receiver to read it
// together with others, at its own next heartbeat, by the time of arrival that the kernel recorded. Everything else is
// read at once: changes and their repetitions, requests, answers and goodbyes.

// routineAfter is how many heartbeats in a row advertise a change before they are routine; one may get lost.
const routineAfter = 3

// heartbeats is what this node's last heartbeats advertised.
type heartbeats struct {
	state     []byte
	unchanged int // number of heartbeats that repeated it
}

// record records the state in a heartbeat.
func (h *heartbeats) record(state []byte) {
	if bytes.Equal(h.state, state) {
		h.unchanged++
		return
	}
	h.state, h.unchanged = append(h.state[:0], state...), 0
}

// flagsAt is the offset of the flags of the hello field, the first one, after the node name.
const flagsAt = headerSize + fieldHeader

// Routine reports whether a datagram is a routine heartbeat. It does not check the tag.
func Routine(datagram []byte) bool {
	if len(datagram) <= 3 {
		return false
	}
	name := int(datagram[3])
	return len(datagram) > flagsAt+name && datagram[headerSize+name] == fieldHello && datagram[flagsAt+name]&flagRoutine != 0
}

// sendRoutine sends a heartbeat without news to all segments, and to all Nodes: to their InternalIPs round robin if one
// of these suffices. The copy for a node that this one does not receive is not routine: when the machine resumes, or
// the network works again, it is read at once.
func (c *Core) sendRoutine(now time.Time, b []byte) {
	flags := flagsAt + len(c.config.Node)
	b[flags] |= flagRoutine
	data := c.finish(b)
	c.group(data, false)
	var urgent []byte
	for _, p := range c.order {
		if !c.misses(p) {
			addrs := p.addrs
			if len(addrs) > 1 && c.needsOne(now, p) {
				next := c.heartbeats.unchanged % len(addrs)
				addrs = addrs[next : next+1]
			}
			c.toAddrs(addrs, data)
			continue
		}
		if urgent == nil {
			urgent = append(c.begin(), data[headerSize+len(c.config.Node):len(data)-tagSize]...)
			urgent[flags] &^= flagRoutine
			urgent = c.finish(urgent)
		}
		c.toAddrs(p.addrs, urgent)
	}
}

// needsOne reports whether one copy of a heartbeat by unicast suffices for a node: this node receives its datagrams to
// the group, where it sends to the group itself, and those by unicast from each of its InternalIPs on one interface.
// Otherwise not each copy may arrive, or the other node receives them on different interfaces.
func (c *Core) needsOne(now time.Time, p *peer) bool {
	dead := p.deadAfter(c)
	for _, s := range p.sources {
		if now.Sub(s.received) >= dead || s.iface != p.sources[0].iface {
			return false
		}
	}
	for i := 1; i < len(c.ifaces); i++ {
		if c.ifaces[i].link && now.Sub(p.paths[i].group) < dead {
			return true
		}
	}
	return false
}

// misses reports whether this node does not receive a peer on a path, or the peer reports that of this node.
func (c *Core) misses(p *peer) bool {
	return !p.paths[0].up || slices.ContainsFunc(p.paths[1:], func(w path) bool { return w.lost || w.asymmetric })
}
