package pools

import (
	"cmp"
	"slices"
)

// takeRecorded puts a new Service on the addresses that its status records, except those held by a Service that it does
// not share with.
func (a *Allocator) takeRecorded(s *service, c *Claim) {
	s.recorded = slices.Clone(c.Held)
	for _, h := range c.Held {
		if u := a.units[h.Addr]; !holdsAddr(s.lease, h.Addr) && (u == nil || clashOf(u, s, c).none()) {
			s.lease = append(s.lease, h)
			a.take(s, h)
		}
	}
	a.restoreLost(s, c)
}

// restoreLost returns to a Service the addresses that its status lost. It does so per family, if the status shows no
// address of a pool in that family. The pool must still assign the address to the Service, and no other Service may
// hold it without sharing.
func (a *Allocator) restoreLost(s *service, c *Claim) {
	for _, h := range c.Lost {
		shown, has := a.heldIn(s.lease, FamilyOf(h.Addr))
		if has && a.PoolOf(shown.Addr) != "" || !a.restorable(s, c, h) {
			continue
		}
		s.restored = len(c.Held) == 0
		s.lease = append(s.lease, h)
		a.take(s, h)
	}
}

func (a *Allocator) restorable(s *service, c *Claim, h Address) bool {
	sp, ok := a.find(h.Addr)
	if _, withheld := a.withheldFrom(c, h.Addr); !ok || withheld || a.hosts[h.Addr] != "" || !sp.pool.offers(h.Addr) || !sp.pool.accepts(a, c) {
		return false
	}
	u := a.units[h.Addr]
	return u == nil || a.joinable(u, s, c).none()
}

// Adopt records the addresses in Held of each claim and assigns nothing. Call it with all Services before the first
// Assign after a start. If Services on one address do not request to share it, the older one (then the first by name)
// stays. The others are returned: each moves at its next Assign, as soon as another address is available for it. A
// Service gets back the addresses that its status lost (Lost), unless another Service holds them.
func (a *Allocator) Adopt(claims []Claim) []ServiceKey {
	sorted := make([]*Claim, 0, len(claims))
	for i := range claims {
		if c := &claims[i]; len(c.Held)+len(c.Lost) > 0 && a.services[c.Service] == nil {
			sorted = append(sorted, c)
		}
	}
	slices.SortFunc(sorted, func(c, o *Claim) int {
		return cmp.Or(c.Created.Compare(o.Created), c.Service.Compare(o.Service))
	})
	var twice []ServiceKey
	for _, c := range sorted {
		s := &service{claim: *c, reason: Allocated, recorded: slices.Clone(c.Held)}
		a.services[c.Service] = s
		a.byNamespace(c.Service.Namespace)[c.Service] = s
		apart := false
		for _, h := range c.Held {
			if holdsAddr(s.lease, h.Addr) {
				continue
			}
			s.lease = append(s.lease, h)
			a.take(s, h)
			found := misfit(a.units[h.Addr], s, c)
			s.misfit, apart = s.misfit || !found.none(), apart || found.apart
		}
		if apart {
			twice = append(twice, c.Service)
		}
	}
	for _, c := range sorted { // after all recorded addresses are in place
		a.restoreLost(a.services[c.Service], c)
	}
	return twice
}
