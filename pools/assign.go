package pools

import (
	"net/netip"
	"slices"
	"time"
)

// Assign decides the claim and records the decision. If the claim cannot be met, the Service keeps what it holds.
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
	freed := a.commit(s, p, now)
	s.reallocated = c.Reallocate && (s.reallocated || p.reallocated)
	d := Decision{
		Lease: slices.Clone(s.lease), Changed: !slices.Equal(s.recorded, s.lease), Freed: freed, Moves: moves,
		Reallocated: s.reallocated && len(s.drains) == 0, Reason: p.reason, Message: p.message,
	}
	if !a.keep {
		s.settle()
	}
	return d
}

// settle marks the current lease as recorded in the status.
func (s *service) settle() {
	s.recorded, s.restored = slices.Clone(s.lease), false
	s.reallocated = s.reallocated && len(s.drains) > 0
}

// update replaces the claim of an existing Service. Services that wait for its addresses may be able to share them now.
func (a *Allocator) update(s *service, c *Claim) {
	a.wakes.unwait(s)
	on := append(slices.Clip(s.lease), s.releasing...)
	for _, h := range on {
		a.unindex(a.units[h.Addr])
	}
	s.claim = *c
	for _, h := range on {
		a.index(a.units[h.Addr])
		a.wakes.mark(waitKey{addr: h.Addr})
	}
}

// commit carries out the plan: it takes new addresses first. Old ones are freed now, or when the status is written.
func (a *Allocator) commit(s *service, p plan, now time.Time) []netip.Addr {
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
	a.setDrains(s, p.drains)
	a.wakes.wait(s, p.waits) // before addresses are freed: it may wait for one of them
	delete(a.unmet, s.claim.Service)
	if p.reason != Allocated {
		a.unmet[s.claim.Service] = struct{}{}
	}
	if !a.keep {
		return a.finishRelease(s, now)
	}
	var left []netip.Addr
	for _, h := range s.releasing {
		left = append(left, h.Addr)
	}
	return left
}

// reevaluateSharers marks for re-evaluation the sharers of the Service's addresses whose outcome may change: misfits
// and draining Services, or all of them when the Service becomes a misfit or ceases to be one.
func (a *Allocator) reevaluateSharers(s *service, all bool) {
	for _, h := range s.lease {
		for _, o := range a.units[h.Addr].holders {
			if o != s && (all || o.misfit || len(o.drains) > 0) {
				a.wakes.reevaluate[o.claim.Service] = struct{}{}
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
	s.settle()
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
	a.wakes.unwait(s)
	a.reevaluateSharers(s, s.misfit)
	s.releasing, s.lease = append(s.releasing, s.lease...), nil
	freed := a.finishRelease(s, now)
	a.setDrains(s, nil)
	delete(a.services, key)
	delete(a.unmet, key)
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
