package pools

import (
	"fmt"
	"net/netip"
	"slices"
)

// plan is a Decision that is not carried out yet.
type plan struct {
	lease   []Address
	reason  Reason
	message string
	waits   waits
	drains  []string // pools whose address it keeps without being accepted
	misfit  bool     // it stays with sharers that it does not agree with
	// reallocated: the claim's Reallocate gives up an address that no pool accepts
	reallocated bool
}

// waits are the changes that may improve a decision.
type waits struct {
	pools []*pool // a change in one of these
	// free is set if nothing but a free address of the family helps.
	free Family
}

// and adds the changes of another part of the decision.
func (w *waits) and(o waits) {
	switch {
	case len(o.pools) == 0:
	case len(w.pools) == 0:
		*w = waits{slices.Clip(o.pools), o.free}
	default:
		w.pools, w.free = append(w.pools, o.pools...), 0
	}
}

// inVain reports whether only a free address helps, and the pools have none.
func (w *waits) inVain() bool {
	return w.free != 0 && !slices.ContainsFunc(w.pools, func(p *pool) bool { return p.autoFree(w.free) != u128{} })
}

// differs reports whether the plan is another decision than the last one of the Service.
func (p *plan) differs(s *service) bool {
	return !slices.Equal(p.lease, s.lease) || !slices.Equal(p.drains, s.drains) ||
		p.reason != s.reason || p.misfit != s.misfit || p.message != s.message
}

// query is one claim being answered.
type query struct {
	claim *Claim
	self  *service
	held  []Address // at most one of each family
	// delta is the change of the namespace's count in a pool by the choices so far.
	delta map[string]int64
}

// choice is the address chosen for one family, or why there is none.
type choice struct {
	addr  Address
	ok    bool
	exact bool // the address was requested
	quota bool // the namespace's quota in a pool is used up
	// reallocated: replaces an address that no pool accepts
	reallocated bool

	drains  string
	reason  Reason
	message string
	waits   waits
}

func (q *query) heldIn(f Family) (Address, bool) {
	i := slices.IndexFunc(q.held, func(h Address) bool { return FamilyOf(h.Addr) == f })
	if i < 0 {
		return Address{}, false
	}
	return q.held[i], true
}

// heldIn returns the address of the family that counts as held. A status has several only if another writer changed it.
// Then the order is: an address of a pool in use, an address assigned from a pool, the first address.
func (a *Allocator) heldIn(lease []Address, f Family) (Address, bool) {
	rank := func(h Address) int {
		switch {
		case a.PoolOf(h.Addr) != "":
			return 0
		case h.Pool != "":
			return 1
		}
		return 2
	}
	best := -1
	for i, h := range lease {
		if FamilyOf(h.Addr) == f && (best < 0 || rank(h) < rank(lease[best])) {
			best = i
		}
	}
	if best < 0 {
		return Address{}, false
	}
	return lease[best], true
}

// held returns the addresses that count as held, at most one of each family.
func (a *Allocator) held(lease []Address) []Address {
	if len(lease) < 2 {
		return lease
	}
	var out []Address
	for _, f := range []Family{IPv4, IPv6} {
		if h, has := a.heldIn(lease, f); has {
			out = append(out, h)
		}
	}
	return out
}

// plan decides the Service's claim. It changes nothing but hints. The caller must have ended the expired cool-downs
// before.
func (a *Allocator) plan(s *service) plan {
	p := a.answer(s)
	for _, h := range p.lease {
		p.misfit = p.misfit || holdsAddr(s.lease, h.Addr) && !misfit(a.units[h.Addr], s, &s.claim).none()
	}
	return p
}

func (a *Allocator) answer(s *service) plan {
	c := &s.claim
	if reason, message := c.check(); reason != Allocated {
		return a.refused(s, choice{reason: reason, message: message})
	}
	fams := c.families()
	chosen := a.chooseAll(s, c, fams)
	if len(fams) == 2 && chosen[0].ok && !chosen[1].ok && chosen[1].quota {
		// The first family may have used up the namespace's quota in the only pool that has the second one. With
		// PreferDualStack a requested address takes precedence over another one.
		reversed := a.chooseAll(s, c, []Family{fams[1], fams[0]})
		requested := c.Policy == PreferDualStack && reversed[0].exact && !reversed[1].exact
		if reversed[0].ok && (reversed[1].ok || requested) {
			chosen = []choice{reversed[1], reversed[0]}
		} else {
			chosen[1].waits.and(reversed[0].waits)
			chosen[1].waits.and(reversed[1].waits)
		}
	}
	prefer := c.Policy == PreferDualStack
	one := prefer && slices.ContainsFunc(chosen, func(ch choice) bool { return ch.ok })
	for i, ch := range chosen {
		if ch.ok || one && !ch.exact {
			continue
		}
		if prefer && i == 0 && len(chosen) == 2 {
			ch.waits.and(chosen[1].waits) // either family may resolve it
		}
		return a.refused(s, ch)
	}
	return a.granted(chosen, c, s)
}

func (a *Allocator) chooseAll(s *service, c *Claim, fams []Family) []choice {
	q := &query{claim: c, self: s, held: a.held(s.lease)}
	out := make([]choice, len(fams))
	for i, f := range fams {
		out[i] = a.choose(q, f)
		a.count(q, f, out[i])
	}
	return out
}

// count updates the namespace's count after the choice.
func (a *Allocator) count(q *query, f Family, ch choice) {
	old, had := q.heldIn(f)
	if !a.quotas || !ch.ok || had && old.Addr == ch.addr.Addr {
		return
	}
	if q.delta == nil {
		q.delta = map[string]int64{}
	}
	if had && a.alone(q, old.Addr) {
		q.delta[a.units[old.Addr].poolName]--
	}
	if !a.heldByNamespace(q, ch.addr.Addr) {
		q.delta[ch.addr.Pool]++
	}
}

// refused keeps everything in place. A Service that requires two families and whose status lost both does not get only
// one of them back.
func (a *Allocator) refused(s *service, ch choice) plan {
	p := plan{lease: s.lease, reason: ch.reason, message: ch.message, waits: ch.waits}
	if s.claim.Policy == RequireDualStack && len(s.claim.families()) == 2 && len(s.lease) == 1 && s.restored {
		p.lease = nil
	}
	for _, h := range p.lease {
		a.keepDrains(&p, s, h)
	}
	return p
}

// keepOf keeps the held address of the family, if there is one.
func (a *Allocator) keepOf(p *plan, s *service, f Family) {
	if h, has := a.heldIn(s.lease, f); has {
		p.lease = append(p.lease, h)
		a.keepDrains(p, s, h)
	}
}

func (a *Allocator) keepDrains(p *plan, s *service, h Address) {
	if u := a.units[h.Addr]; !a.accepted(u, &s.claim) && !slices.Contains(p.drains, u.poolName) {
		p.drains = append(p.drains, u.poolName)
	}
}

// granted takes the chosen addresses. A family without a choice keeps its address, or waits.
func (a *Allocator) granted(chosen []choice, c *Claim, s *service) plan {
	p := plan{reason: Allocated}
	for i, ch := range chosen {
		p.waits.and(ch.waits)
		reason := ch.reason
		if !ch.ok && reason != SharingRefused {
			reason = SecondFamilyPending
		}
		if weight(reason) > weight(p.reason) {
			p.reason, p.message = reason, ch.message
		}
		if !ch.ok {
			a.keepOf(&p, s, c.families()[i])
			continue
		}
		p.lease = append(p.lease, ch.addr)
		p.reallocated = p.reallocated || ch.reallocated
		if ch.drains != "" && !slices.Contains(p.drains, ch.drains) {
			p.drains = append(p.drains, ch.drains)
		}
	}
	return p
}

// weight orders the reasons of two families: the decision has the heavier one, or the first of equal ones.
func weight(r Reason) int {
	return slices.Index([]Reason{Allocated, SecondFamilyPending, Draining, SharingRefused}, r)
}

// check refuses a request that contradicts itself.
func (c *Claim) check() (Reason, string) {
	if c.Invalid != "" {
		return InvalidRequest, c.Invalid
	}
	if len(c.Addresses) == 0 {
		return Allocated, ""
	}
	fams := c.families()
	seen := map[Family]netip.Addr{}
	for _, x := range c.Addresses {
		f := FamilyOf(x)
		if !slices.Contains(fams, f) {
			return WrongFamily, fmt.Sprintf("%s requests %s (%s), but its families are %v: request an address of these, or change spec.ipFamilies and spec.ipFamilyPolicy",
				c.Service, x, f, fams)
		}
		if o, has := seen[f]; has {
			return WrongFamily, fmt.Sprintf("%s requests two %s addresses, %s and %s: request at most one of each family", c.Service, f, o, x)
		}
		seen[f] = x
	}
	return Allocated, ""
}
