package member

import "time"

// Received returns the nodes whose speakers are received directly, and not by relay alone: where a node has been received
// from one of its InternalIPs, on the network of these. It returns nil if that is the same as at the last call, and so is
// whether this node is an observer, in which case what is missing means nothing. The map must not be changed.
func (c *Core) Received() (nodes map[string]struct{}, observer, changed bool) {
	if c.reported.nodes != nil && c.reported.at.Equal(c.lastTick) {
		return nil, c.observer, false // evaluated once a tick
	}
	c.reported.at = c.lastTick
	same := c.reported.observer == c.observer && c.reported.nodes != nil
	count := 0
	for _, p := range c.order {
		if !c.receives(p) {
			continue
		}
		count++
		_, was := c.reported.nodes[p.name]
		same = same && was
	}
	if same && count == len(c.reported.nodes) {
		return nil, c.observer, false
	}
	nodes = make(map[string]struct{}, count)
	for _, p := range c.order {
		if c.receives(p) {
			nodes[p.name] = struct{}{}
		}
	}
	c.reported.nodes, c.reported.observer = nodes, c.observer
	return nodes, c.observer, true
}

// reported is what Received returned last.
type reported struct {
	nodes    map[string]struct{}
	observer bool
	at       time.Time
}

// receives reports whether datagrams of a node arrive from itself. Its network is silent once others have brought
// datagrams for a dead time and that one none: so a stall of this node makes nothing silent.
func (c *Core) receives(p *peer) bool {
	any := &p.paths[0]
	return any.up && !any.byRelay && !p.away && (p.internal.IsZero() || any.heard.Sub(p.internal) < p.deadAfter(c))
}

// arrives records where a datagram came from.
func (p *peer) arrives(now time.Time, in Packet) {
	for _, a := range p.addrs {
		if a == in.Source {
			p.internal = now
		}
	}
}
