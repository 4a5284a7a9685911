package member

import (
	"bytes"
	"slices"
	"time"
)

// A heartbeat that only repeats what earlier ones advertised is routine: its flag allows the receiver to read it
// together with others, at its own next heartbeat, by the time of arrival that the kernel recorded. Everything else is
// read at once: changes and their repetitions, requests, answers, goodbyes, and all datagrams of earlier versions.

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

// splitAfter is how long all unicast of a node must arrive on one interface before its InternalIPs get copies round
// robin.
const splitAfter = time.Minute

// sendRoutine sends a heartbeat without news to all segments, and to all Nodes: to their InternalIPs round robin if the
// segments and one of these suffice. The copy for a node that this one does not receive is not routine: when the
// machine resumes, or the network works again, it is read at once.
func (c *Core) sendRoutine(now time.Time, b []byte) {
	flags := flagsAt + len(c.config.Node)
	b[flags] |= flagRoutine
	data := c.finish(b)
	c.group(data, c.broadcasts)
	var urgent []byte
	for _, p := range c.order {
		if !c.misses(p) {
			addrs := p.addrs
			if len(addrs) > 1 && p.needsOne(now) {
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

// needsOne reports whether one copy of a heartbeat by unicast suffices for a node: datagrams to the group are received
// from it, and those by unicast on one interface, whichever InternalIP they are sent to. The loss of one family of
// addresses then halves the copies by unicast until the group is lost, too, and this node misses it.
func (p *peer) needsOne(now time.Time) bool {
	byGroup := slices.ContainsFunc(p.paths[1:], func(w path) bool { return w.up && w.byGroup })
	return byGroup && now.Sub(p.split) >= splitAfter
}

// misses reports whether this node does not receive a peer on a path, or the peer reports that of this node.
func (c *Core) misses(p *peer) bool {
	return !p.paths[0].up || slices.ContainsFunc(p.paths[1:], func(w path) bool { return w.lost || w.asymmetric })
}
