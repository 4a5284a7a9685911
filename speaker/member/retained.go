package member

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// A speaker that restarts while its node stays up leaves its addresses to the kernel for a while
// (docs/design/failover.md). Its goodbye carries the duration. Meanwhile the other nodes count the node as alive and as
// the owner of what it claimed, as long as its kernel answers ARP or neighbor discovery. The next process advertises
// that it is the expected one; the claims of the previous process count until it has decided itself.

const (
	// maxRetained limits the duration in a goodbye.
	maxRetained = 5 * time.Minute
	// maxUnanswered is the number of consecutive unanswered probes after which a node without a process counts as
	// dead. One probe is sent each probeAfter. The link may lose some.
	maxUnanswered = 5
)

// Neighbor is a node on the segment of an interface.
type Neighbor struct {
	Iface string
	Addr  netip.Addr
	MAC   [6]byte
}

// Away returns the nodes without a process to probe by ARP or neighbor discovery, on each interface on which they are
// alive. It returns nil if there are none.
func (c *Core) Away() (away []Neighbor) {
	for _, p := range c.order {
		if !p.away {
			continue
		}
		for at := 1; at < len(p.paths); at++ {
			if mac, can := c.probeTarget(p, at); can {
				away = append(away, Neighbor{Iface: c.ifaces[at].name, Addr: p.paths[at].from, MAC: mac})
			}
		}
	}
	return away
}

// Answered records which nodes of Away answered a probe and which did not; for the others the state is unknown. A
// result does not count if this node has stopped receiving all other nodes on that interface: this node itself may be
// cut off.
func (c *Core) Answered(answered, silent []Neighbor) {
	record := func(all []Neighbor, do func(w *path)) {
		for _, n := range all {
			at, known := c.findIface(n.Iface)
			if !known {
				continue
			}
			for _, p := range c.order {
				if w := &p.paths[at]; p.away && w.from == n.Addr && (!w.othersReceived || c.receivesOther(p, at)) {
					do(w)
				}
			}
		}
	}
	record(answered, func(w *path) { w.silences = 0 })
	record(silent, func(w *path) { w.silences++ })
}

// probeTarget reports whether a node can be probed on an interface, and returns its hardware address there if known.
func (c *Core) probeTarget(p *peer, at int) (mac [6]byte, can bool) {
	w, f := &p.paths[at], &c.ifaces[at]
	if !w.up || w.byRelay || !w.from.IsValid() {
		return mac, false
	}
	for _, s := range p.segments {
		if f.link && f.is(s.key) {
			mac = s.mac
		}
	}
	return mac, true
}

// becomeAway records that a node answers without a process from now on.
func (c *Core) becomeAway(p *peer) {
	p.away = true
	for at := 1; at < len(p.paths); at++ {
		p.paths[at].silences, p.paths[at].othersReceived = 0, c.receivesOther(p, at)
	}
	c.out.node(p)
}

// receivesOther reports whether this node receives another node with a process on an interface.
func (c *Core) receivesOther(p *peer, at int) bool {
	return slices.ContainsFunc(c.order, func(q *peer) bool {
		return q != p && !q.away && q.paths[at].up && !q.paths[at].byRelay
	})
}

// evaluateAway keeps a node without a process alive where its kernel answers, and where it cannot be probed. If it can
// be probed nowhere, it counts as alive everywhere. It reports whether the node is alive.
func (c *Core) evaluateAway(now time.Time, p *peer) bool {
	probed, alive := false, false
	for at := 1; at < len(p.paths); at++ {
		if _, can := c.probeTarget(p, at); !can {
			continue
		}
		probed = true
		w := &p.paths[at]
		if w.silences < maxUnanswered {
			alive = true
			continue
		}
		w.up, w.lost = false, true
		c.out.node(p)
	}
	if probed && !alive {
		c.unanswered = append(c.unanswered, p.name)
		return false
	}
	for at := range p.paths {
		if w := &p.paths[at]; w.up {
			w.received = now
		}
	}
	return true
}

// handleGoodbye handles a goodbye. Either the node continues to answer, or it counts as dead at once.
func (c *Core) handleGoodbye(now time.Time, p *peer, retained time.Duration) {
	if retained == 0 || !p.paths[0].up {
		c.markEnded(p)
		return
	}
	p.ended, p.retainedUntil = true, now.Add(min(retained, maxRetained))
	c.becomeAway(p)
}

// retains reports whether a node answers without a process that is received. Once that ends, it is handled like any
// other node.
func (c *Core) retains(now time.Time, p *peer) bool {
	switch {
	case p.retainedUntil.IsZero():
		return false
	case now.Before(p.retainedUntil):
		if !p.away || c.evaluateAway(now, p) {
			return p.away
		}
	}
	p.givenUp = now.Before(p.retainedUntil)
	if p.ended {
		c.markEnded(p)
	} else { // its process may be received again
		c.release(p)
	}
	return false
}

// Unanswered returns the away nodes that were given up since the last call.
func (c *Core) Unanswered() []string {
	nodes := c.unanswered
	c.unanswered = nil
	return nodes
}

// retainSilent reports whether a silent node continues to answer: its process was the expected one, and had not decided
// on everything. That process may be received again.
func (c *Core) retainSilent(now time.Time, p *peer) bool {
	if len(p.retainedClaims) == 0 || !now.Before(p.retainedUntil) {
		return false
	}
	for id := range p.claims.claims {
		c.out.vip(id)
	}
	p.claims = replica{}
	c.becomeAway(p)
	return true
}

// processReplaced handles the start of another process on a node. The previous claims stay in force if the node retains
// them.
func (c *Core) processReplaced(now time.Time, p *peer, incarnation uint64) {
	claims, until, alive := p.claimed(), p.retainedUntil, p.paths[0].up
	c.restarted(p, incarnation)
	if c.msg.flags&flagRetained != 0 && now.Before(until) && alive && len(claims) > 0 {
		p.retainedClaims, p.retainedUntil = maps.Clone(claims), until // the map may be in a snapshot
	}
}

// release drops the claims of a previous process.
func (c *Core) release(p *peer) {
	p.retainedUntil = time.Time{}
	if p.away {
		p.away = false
		c.out.node(p)
	}
	if p.retainedClaims == nil {
		return
	}
	for id := range p.retainedClaims {
		c.out.vip(id)
	}
	p.retainedClaims = nil
	c.out.node(p)
}

// claimed returns a node's claims, including those in force from a previous process. The map must not be changed.
func (p *peer) claimed() map[view.VIPID]view.Claim {
	p.claims.shared = true
	if p.retainedClaims == nil {
		return p.claims.claims
	}
	all := maps.Clone(p.retainedClaims)
	maps.Copy(all, p.claims.claims)
	return all
}

// decided records that the present process has advertised a claim of a VirtualIP: the previous process's claim ends
// permanently.
func (p *peer) decided(id view.VIPID) {
	delete(p.retainedClaims, id)
}

// Settled records that this process has decided on everything retained from a previous one.
func (c *Core) Settled() {
	c.heartbeatNow = c.heartbeatNow || c.config.Retained
	c.config.Retained = false
}
