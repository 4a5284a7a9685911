package member

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// A speaker that is restarted while its node stays leaves its addresses to the kernel for a while
// (docs/design/failover.md). Its goodbye says for how long: meanwhile the others take the node for alive and for the
// holder of what it claimed, as long as its kernel answers ARP or neighbour discovery. The next process says that it is
// one that was expected; what the earlier one claimed counts until it has decided itself.

const (
	// retainedMost bounds what a goodbye may ask for.
	retainedMost = 5 * time.Minute
	// unansweredMost is how many questions in a row a node without a process leaves unanswered until it counts as dead.
	// It is asked each relistAfter. The link may lose some.
	unansweredMost = 5
)

// Neighbour is a node on the segment of an interface.
type Neighbour struct {
	Iface string
	Addr  netip.Addr
	MAC   [6]byte
}

// Away returns the nodes without a process that are to be asked by ARP or neighbour discovery whether they still
// answer, on each interface on which they are alive. Nil for nobody.
func (c *Core) Away() (away []Neighbour) {
	for _, p := range c.order {
		if !p.away {
			continue
		}
		for at := 1; at < len(p.paths); at++ {
			if mac, can := c.asks(p, at); can {
				away = append(away, Neighbour{Iface: c.ifaces[at].name, Addr: p.paths[at].from, MAC: mac})
			}
		}
	}
	return away
}

// Answered takes in which of Away have answered a question and which have not. Of the others it is not known. Nothing
// counts while this node receives nobody else there any more: it may be this one that is cut off.
func (c *Core) Answered(answered, silent []Neighbour) {
	note := func(all []Neighbour, do func(w *path)) {
		for _, n := range all {
			at, known := c.findIface(n.Iface)
			if !known {
				continue
			}
			for _, p := range c.order {
				if w := &p.paths[at]; p.away && w.from == n.Addr && (!w.company || c.accompanied(p, at)) {
					do(w)
				}
			}
		}
	}
	note(answered, func(w *path) { w.silences = 0 })
	note(silent, func(w *path) { w.silences++ })
}

// asks reports whether a node can be asked on an interface, and at which hardware address if that is known.
func (c *Core) asks(p *peer, at int) (mac [6]byte, can bool) {
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

// leaves records that a node answers without a process from now on.
func (c *Core) leaves(p *peer) {
	p.away = true
	for at := 1; at < len(p.paths); at++ {
		p.paths[at].silences, p.paths[at].company = 0, c.accompanied(p, at)
	}
	c.out.node(p)
}

// accompanied reports whether this node receives another one with a process on an interface.
func (c *Core) accompanied(p *peer, at int) bool {
	return slices.ContainsFunc(c.order, func(q *peer) bool {
		return q != p && !q.away && q.paths[at].up && !q.paths[at].byRelay
	})
}

// answers keeps a node without a process alive where its kernel answers. Where it cannot be asked it is believed, and
// everywhere if it can be asked nowhere.
func (c *Core) answers(now time.Time, p *peer) bool {
	asked, alive := false, false
	for at := 1; at < len(p.paths); at++ {
		if _, can := c.asks(p, at); !can {
			continue
		}
		asked = true
		w := &p.paths[at]
		if w.silences < unansweredMost {
			alive = true
			continue
		}
		w.up, w.lost = false, true
		c.out.node(p)
	}
	if asked && !alive {
		c.unanswered = append(c.unanswered, p.name)
		return false
	}
	for at := range p.paths {
		if w := &p.paths[at]; w.up {
			w.heard = now
		}
	}
	return true
}

// goes takes in a goodbye: of a process whose node goes on answering, or of one that nobody need wait for until it counts as dead.
func (c *Core) goes(now time.Time, p *peer, retained time.Duration) {
	if retained == 0 || !p.paths[0].up {
		c.ended(p)
		return
	}
	p.ended, p.retainedUntil = true, now.Add(min(retained, retainedMost))
	c.leaves(p)
}

// retains reports whether a node answers without a process that is heard. Once that is over, it ends like any other.
func (c *Core) retains(now time.Time, p *peer) bool {
	switch {
	case p.retainedUntil.IsZero():
		return false
	case now.Before(p.retainedUntil):
		if !p.away || c.answers(now, p) {
			return p.away
		}
	}
	p.givenUp = now.Before(p.retainedUntil)
	if p.ended {
		c.ended(p)
	} else { // its process may be heard again
		c.release(p)
	}
	return false
}

// Unanswered returns the nodes away that have been given up since the last call.
func (c *Core) Unanswered() []string {
	nodes := c.unanswered
	c.unanswered = nil
	return nodes
}

// falls tells whether a node that has fallen silent goes on answering: its process is the one that was expected, and had not decided on
// everything. That process may be heard again.
func (c *Core) falls(now time.Time, p *peer) bool {
	if len(p.former) == 0 || !now.Before(p.retainedUntil) {
		return false
	}
	for id := range p.claims.claims {
		c.out.vip(id)
	}
	p.claims = replica{}
	c.leaves(p)
	return true
}

// succeeds takes in that another process runs on a node. What the one before it claimed stays in force if the node retains it.
func (c *Core) succeeds(now time.Time, p *peer, incarnation uint64) {
	former, until, alive := p.claimed(), p.retainedUntil, p.paths[0].up
	c.restarted(p, incarnation)
	if c.msg.flags&flagRetained != 0 && now.Before(until) && alive && len(former) > 0 {
		p.former, p.retainedUntil = maps.Clone(former), until // that one may be in a snapshot
	}
}

// release ends what was in force of an earlier process.
func (c *Core) release(p *peer) {
	p.retainedUntil = time.Time{}
	if p.away {
		p.away = false
		c.out.node(p)
	}
	if p.former == nil {
		return
	}
	for id := range p.former {
		c.out.vip(id)
	}
	p.former = nil
	c.out.node(p)
}

// claimed returns what a node claims, with what is in force of an earlier process. The map must not be changed.
func (p *peer) claimed() map[plan.VIPID]plan.Claim {
	p.claims.shared = true
	if p.former == nil {
		return p.claims.claims
	}
	all := maps.Clone(p.former)
	maps.Copy(all, p.claims.claims)
	return all
}

// decided notes that the present process has said something of a VirtualIP: what the earlier one claimed is over for good.
func (p *peer) decided(id plan.VIPID) {
	delete(p.former, id)
}

// Settled says that this process has decided on everything that was retained of an earlier one.
func (c *Core) Settled() {
	c.beatNow = c.beatNow || c.config.Retained
	c.config.Retained = false
}
