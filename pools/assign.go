package pools

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

func (a *Allocator) assign(c Claim, now time.Time) Decision {
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
	before := s.lease
	if s.recorded != nil {
		before, s.recorded = s.recorded, nil
	}
	p := a.plan(s)
	freed := a.commit(s, p, now)
	return Decision{Lease: slices.Clone(s.lease), Changed: !slices.Equal(before, s.lease), Freed: freed, Reason: p.reason, Message: p.message}
}

// update takes a newer claim of a Service that is known. Whoever waits for what it holds may share it now.
func (a *Allocator) update(s *service, c *Claim) {
	a.wakes.unwait(s)
	for _, h := range s.lease {
		a.unindex(a.units[h.Addr])
	}
	s.claim = *c
	for _, h := range s.lease {
		a.index(a.units[h.Addr])
		a.wakes.mark(waitKey{addr: h.Addr})
	}
}

// commit carries the plan out: new addresses first, then the old ones go.
func (a *Allocator) commit(s *service, p plan, now time.Time) []netip.Addr {
	var freed []netip.Addr
	for _, w := range p.lease {
		if !holdsAddr(s.lease, w.Addr) {
			a.take(s, w)
		}
	}
	for _, h := range s.lease {
		if !holdsAddr(p.lease, h.Addr) && a.drop(s, h.Addr, now) {
			freed = append(freed, h.Addr)
		}
	}
	s.lease, s.reason, s.message, s.misfit = slices.Clone(p.lease), p.reason, p.message, p.misfit
	a.setDrains(s, p.drains)
	a.wakes.wait(s, p.waits)
	delete(a.unmet, s.claim.Service)
	if p.reason != Allocated {
		a.unmet[s.claim.Service] = struct{}{}
	}
	return freed
}

func holdsAddr(lease []Address, x netip.Addr) bool {
	return slices.ContainsFunc(lease, func(h Address) bool { return h.Addr == x })
}

func (a *Allocator) take(s *service, w Address) {
	if u := a.units[w.Addr]; u != nil {
		a.unindex(u)
	}
	a.hold(s, w)
	a.index(a.units[w.Addr])
}

func (a *Allocator) drop(s *service, addr netip.Addr, now time.Time) bool {
	u := a.units[addr]
	a.unindex(u)
	if a.unhold(s, addr, now) {
		return true
	}
	a.index(u)
	return false
}

// setDrains keeps the pools' lists of draining Services in step.
func (a *Allocator) setDrains(s *service, drains []string) {
	if slices.Equal(s.drains, drains) {
		return
	}
	for _, name := range s.drains {
		delete(a.ledger(name).draining, s.claim.Service)
		a.forgetLedger(name)
		a.dirty[name] = struct{}{}
	}
	for _, name := range drains {
		a.ledger(name).draining[s.claim.Service] = struct{}{}
		a.dirty[name] = struct{}{}
	}
	s.drains = slices.Clone(drains)
}

func (a *Allocator) release(key ServiceKey, now time.Time) []netip.Addr {
	a.expire(now)
	s := a.services[key]
	if s == nil {
		return nil
	}
	a.wakes.unwait(s)
	freed := a.commit(s, plan{}, now)
	delete(a.services, key)
	delete(a.unmet, key)
	delete(a.byNamespace(key.Namespace), key)
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

// takeRecorded puts a Service that is new to us on the addresses its status records. Sharers that came to disagree
// stay, the younger ones as misfits; an address that another Service holds without any sharing key is not given twice.
// It says whether the Service got them all.
func (a *Allocator) takeRecorded(s *service, c *Claim) bool {
	all := true
	s.recorded = c.Held
	for _, h := range c.Held {
		u := a.units[h.Addr]
		if holdsAddr(s.lease, h.Addr) || u != nil && !wasShared(u, c) {
			all = false
			continue
		}
		if u != nil && misfit(u, s, c) != "" {
			s.misfit = true
		}
		a.take(s, h)
		s.lease = append(s.lease, h)
	}
	return all
}

// wasShared says whether the claim, or everybody on the address, has a sharing key.
func wasShared(u *unit, c *Claim) bool {
	return c.SharingKey != "" || !slices.ContainsFunc(u.holders, func(h *service) bool { return h.claim.SharingKey == "" })
}

func (a *Allocator) adopt(claims []Claim) []ServiceKey {
	sorted := slices.Clone(claims)
	slices.SortFunc(sorted, func(c, o Claim) int {
		return cmp.Or(c.Created.Compare(o.Created), c.Service.Compare(o.Service))
	})
	var refused []ServiceKey
	for i := range sorted {
		c := &sorted[i]
		if len(c.Held) == 0 || a.services[c.Service] != nil {
			continue
		}
		s := &service{claim: *c, reason: Allocated}
		a.services[c.Service] = s
		a.byNamespace(c.Service.Namespace)[c.Service] = s
		if !a.takeRecorded(s, c) {
			refused = append(refused, c.Service)
		}
	}
	return refused
}
