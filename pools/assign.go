package pools

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Assign decides the claim and records the decision. If the claim cannot be met, the Service keeps what it holds. What
// it gives up it keeps until Written: a crash between two writes to the API server must not leave one address in the
// status of two Services.
func (a *Allocator) Assign(c Claim, now time.Time) Decision {
	a.expire(now)
	s := a.services[c.Service]
	if s == nil {
		s = &service{claim: c}
		a.services[c.Service] = s
		a.byNamespace(c.Service.Namespace)[c.Service] = s
		a.takeRecorded(s, &c)
	} else {
		a.update(s, &c)
	}
	p := a.plan(s)
	moves := a.moves(s, p)
	a.commit(s, p)
	d := Decision{
		Lease: slices.Clone(s.lease), Changed: !slices.Equal(s.recorded, s.lease), Moves: moves,
		Reallocated: s.reallocated && len(s.drains) == 0, Reason: p.reason, Message: p.message,
	}
	for _, h := range s.releasing {
		d.Freed = append(d.Freed, h.Addr)
	}
	return d
}

// Reevaluate decides again about the Services that the changes since the last call concern, by their last claims, the
// oldest first. It returns those whose decision changed: their Assign returns it. Call it after every change and after
// every Assign.
func (a *Allocator) Reevaluate(now time.Time) []ServiceKey {
	a.expire(now)
	var keys []ServiceKey
	for _, s := range a.concerned() {
		inVain := !s.marked && s.waits.inVain()
		s.marked = false
		if inVain || a.services[s.claim.Service] != s {
			continue
		}
		p := a.plan(s)
		if s.waits = p.waits; !p.differs(s) {
			continue
		}
		a.commit(s, p)
		keys = append(keys, s.claim.Service)
	}
	return keys
}

// concerned returns and forgets the Services to evaluate again, the oldest first.
func (a *Allocator) concerned() []*service {
	all := a.marked
	if a.loosened {
		for _, s := range a.unmet {
			if !s.marked && slices.ContainsFunc(s.waits.pools, func(p *pool) bool { return p.loosened }) {
				all = append(all, s)
			}
		}
		for _, p := range a.pools {
			p.loosened = false
		}
	}
	if len(a.marked) > 0 { // else they are sorted
		slices.SortFunc(all, older)
	}
	a.marked, a.loosened = nil, false
	return all
}

// mark has the Service evaluated again.
func (a *Allocator) mark(s *service) {
	if !s.marked {
		s.marked = true
		a.marked = append(a.marked, s)
	}
}

// loosen has the Services evaluated again that wait for something in the pool, if there is one.
func (a *Allocator) loosen(p *pool) {
	if p != nil {
		p.loosened, a.loosened = true, true
	}
}

// older orders Services that wait.
func older(s, o *service) int {
	return cmp.Or(s.claim.Created.Compare(o.claim.Created), s.claim.Service.Compare(o.claim.Service))
}

// setUnmet records whether the claim of the Service is not met in full.
func (a *Allocator) setUnmet(s *service, unmet bool) {
	i, has := slices.BinarySearchFunc(a.unmet, s, older)
	switch {
	case unmet && !has:
		a.unmet = slices.Insert(a.unmet, i, s)
	case !unmet && has:
		a.unmet = slices.Delete(a.unmet, i, i+1)
	}
}

// update replaces the claim of an existing Service. Services that wait for its addresses may be able to share them now.
func (a *Allocator) update(s *service, c *Claim) {
	if !s.claim.Created.Equal(c.Created) { // its place among those that wait
		a.setUnmet(s, false)
	}
	if s.claim.sharesAs(c) {
		s.claim = *c
		return
	}
	on := append(slices.Clip(s.lease), s.releasing...)
	for _, h := range on {
		a.unindex(a.units[h.Addr])
	}
	s.claim = *c
	for _, h := range on {
		a.index(a.units[h.Addr])
		a.loosen(a.units[h.Addr].pool)
	}
}

// commit carries out the plan. The addresses that it gives up are freed when the status is written.
func (a *Allocator) commit(s *service, p plan) {
	for _, w := range p.lease {
		if holdsAddr(s.releasing, w.Addr) {
			s.releasing = slices.DeleteFunc(s.releasing, func(h Address) bool { return h.Addr == w.Addr })
		} else if !holdsAddr(s.lease, w.Addr) {
			a.take(s, w)
		}
	}
	for _, h := range s.lease {
		if !holdsAddr(p.lease, h.Addr) {
			s.releasing = append(s.releasing, h)
		}
	}
	a.reevaluateSharers(s, p.misfit != s.misfit)
	s.lease, s.reason, s.message, s.misfit = slices.Clone(p.lease), p.reason, p.message, p.misfit
	s.waits, s.reallocated = p.waits, s.claim.Reallocate && (s.reallocated || p.reallocated)
	a.setDrains(s, p.drains)
	a.setUnmet(s, p.reason != Allocated)
}

// reevaluateSharers marks for re-evaluation the sharers of the Service's addresses whose outcome may change: misfits
// and draining Services, or all of them when the Service becomes a misfit or ceases to be one.
func (a *Allocator) reevaluateSharers(s *service, all bool) {
	for _, h := range s.lease {
		for _, o := range a.units[h.Addr].holders {
			if o != s && (all || o.misfit || len(o.drains) > 0) {
				a.mark(o)
			}
		}
	}
}

// finishRelease takes the Service off the addresses that it gave up. It returns those without a remaining holder.
func (a *Allocator) finishRelease(s *service, now time.Time) []netip.Addr {
	var freed []netip.Addr
	for _, h := range s.releasing {
		if a.drop(s, h.Addr, now) {
			freed = append(freed, h.Addr)
		}
	}
	s.releasing = nil
	return freed
}

// Written records that the Service's status shows its lease and nothing else. It frees and returns the addresses that
// the Service gave up.
func (a *Allocator) Written(key ServiceKey, now time.Time) []netip.Addr {
	a.expire(now)
	s := a.services[key]
	if s == nil {
		return nil
	}
	s.recorded, s.restored = slices.Clone(s.lease), false
	if s.reallocated && len(s.drains) == 0 { // the request is carried out
		s.reallocated, s.claim.Reallocate = false, false
	}
	return a.finishRelease(s, now)
}

func holdsAddr(lease []Address, x netip.Addr) bool {
	return slices.ContainsFunc(lease, func(h Address) bool { return h.Addr == x })
}

func (a *Allocator) take(s *service, w Address) {
	if u := a.units[w.Addr]; u != nil {
		a.unindex(u)
	}
	a.hold(s, w)
	a.recountPool(a.units[w.Addr])
	a.index(a.units[w.Addr])
}

func (a *Allocator) drop(s *service, addr netip.Addr, now time.Time) bool {
	u := a.units[addr]
	a.unindex(u)
	if a.unhold(s, addr, now) {
		return true
	}
	a.recountPool(u)
	a.index(u)
	return false
}

// setDrains updates the pools' lists of draining Services.
func (a *Allocator) setDrains(s *service, drains []string) {
	if slices.Equal(s.drains, drains) {
		return
	}
	for _, name := range s.drains {
		delete(a.ledger(name).draining, s.claim.Service)
		a.pruneLedger(name)
		a.dirty[name] = struct{}{}
	}
	for _, name := range drains {
		a.ledger(name).draining[s.claim.Service] = struct{}{}
		a.dirty[name] = struct{}{}
	}
	s.drains = slices.Clone(drains)
}

// Release frees everything that the Service holds or waits for. It returns the addresses without a remaining holder.
func (a *Allocator) Release(key ServiceKey, now time.Time) []netip.Addr {
	a.expire(now)
	s := a.services[key]
	if s == nil {
		return nil
	}
	a.reevaluateSharers(s, s.misfit)
	s.releasing, s.lease = append(s.releasing, s.lease...), nil
	freed := a.finishRelease(s, now)
	a.setDrains(s, nil)
	delete(a.services, key)
	a.setUnmet(s, false)
	delete(a.inNS[key.Namespace], key)
	if len(a.inNS[key.Namespace]) == 0 {
		delete(a.inNS, key.Namespace)
	}
	return freed
}

func (a *Allocator) byNamespace(ns string) map[ServiceKey]*service {
	m := a.inNS[ns]
	if m == nil {
		m = map[ServiceKey]*service{}
		a.inNS[ns] = m
	}
	return m
}
