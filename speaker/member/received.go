package member

import (
	"maps"
	"time"
)

// Reception is what this node receives.
type Reception struct {
	// Nodes are those whose speakers are received directly, not only by relay, and receive others. For a node that was
	// once received from one of its InternalIPs, only their network counts. For an observer, a missing node means nothing.
	Nodes    map[string]struct{}
	Observer bool
	// Silent are the interfaces on which no speaker is received, with the beginnings of the silence: this node may be cut
	// off there.
	Silent map[string]time.Time
}

// Received returns what this node receives, and whether that has changed since the last call. The result must not be
// changed.
func (c *Core) Received() (now Reception, changed bool) {
	if c.reported.Nodes != nil && c.reportedAt.Equal(c.lastTick) {
		return c.reported, false // evaluated once a tick
	}
	c.reportedAt = c.lastTick
	var silent map[string]time.Time
	for i := range c.ifaces {
		if f := &c.ifaces[i]; f.silent {
			if silent == nil {
				silent = map[string]time.Time{}
			}
			silent[f.name] = f.silentSince()
		}
	}
	same := c.reported.Observer == c.observer && c.reported.Nodes != nil && maps.Equal(c.reported.Silent, silent)
	count := 0
	for _, p := range c.order {
		if !c.receives(p) {
			continue
		}
		count++
		_, was := c.reported.Nodes[p.name]
		same = same && was
	}
	if same && count == len(c.reported.Nodes) {
		return c.reported, false
	}
	nodes := make(map[string]struct{}, count)
	for _, p := range c.order {
		if c.receives(p) {
			nodes[p.name] = struct{}{}
		}
	}
	c.reported = Reception{Nodes: nodes, Observer: c.observer, Silent: silent}
	return c.reported, true
}

// receives reports whether datagrams arrive from a node itself, and it receives others by their InternalIPs. Its
// InternalIP network counts as silent once other paths have delivered its datagrams for a dead time and that network
// none. So a stall of this node makes nothing silent.
func (c *Core) receives(p *peer) bool {
	any := &p.paths[0]
	return any.up && !any.byRelay && !p.away && !any.none && (p.internal.IsZero() || any.received.Sub(p.internal) < p.deadAfter(c))
}

// arrives records the path and the source of a datagram.
func (c *Core) arrives(now time.Time, p *peer, at int, in Packet, sequence uint64) {
	w := &p.paths[at]
	w.window.add(sequence)
	p.from, p.arrived = in.Source, later(p.arrived, now)
	if in.Group || !w.byGroup {
		w.from, w.byGroup = in.Source, in.Group
	}
	for _, a := range p.addrs {
		if a == in.Source {
			p.internal = later(p.internal, now)
			c.ifaces[0].ever, c.ifaces[0].last = true, later(c.ifaces[0].last, now)
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
