package member

import "time"

// Received returns the nodes whose speakers are received directly, not only by relay. For a node that was once received
// from one of its InternalIPs, only their network counts. It returns nil if neither the nodes nor whether this node is
// an observer have changed since the last call. For an observer, a missing node means nothing. The map must not be
// changed.
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

// reported is the last result of Received.
type reported struct {
	nodes    map[string]struct{}
	observer bool
	at       time.Time
}

// receives reports whether datagrams arrive from a node itself. Its InternalIP network counts as silent once other
// paths have delivered its datagrams for a dead time and that network none. So a stall of this node makes nothing
// silent.
func (c *Core) receives(p *peer) bool {
	any := &p.paths[0]
	return any.up && !any.byRelay && !p.away && (p.internal.IsZero() || any.received.Sub(p.internal) < p.deadAfter(c))
}

// arrives records the source of a datagram.
func (p *peer) arrives(now time.Time, in Packet) {
	for _, a := range p.addrs {
		if a == in.Source {
			p.internal = later(p.internal, now)
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
