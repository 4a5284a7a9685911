package member

import (
	"maps"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// A speaker that is restarted while its node stays leaves its addresses to the kernel for a while (docs/design/failover.md). Its goodbye
// says for how long: meanwhile the others take the node for alive and for the holder of what it claimed. The next process says that it is
// one that was expected; what the earlier one claimed counts until it has decided itself.

// retainedMost bounds what a goodbye may ask for.
const retainedMost = time.Minute

// goes takes in a goodbye: of a process whose node goes on answering, or of one that nobody need wait for until it counts as dead.
func (c *Core) goes(now time.Time, p *peer, retained time.Duration) {
	if retained == 0 || !p.paths[0].up {
		c.ended(p)
		return
	}
	p.ended, p.away, p.retainedUntil = true, true, now.Add(min(retained, retainedMost))
	c.out.node(p)
}

// retains tells whether a node answers without a process that is heard. Once that is over, it ends like any other.
func (c *Core) retains(now time.Time, p *peer) bool {
	switch {
	case p.retainedUntil.IsZero():
		return false
	case now.Before(p.retainedUntil):
		for at := range p.paths {
			if w := &p.paths[at]; w.up && p.away {
				w.heard = now
			}
		}
		return p.away
	case p.ended:
		c.ended(p)
	default:
		c.release(p)
	}
	return false
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
	p.away, p.claims = true, replica{}
	c.out.node(p)
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
