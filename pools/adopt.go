package pools

import (
	"cmp"
	"slices"
)

// takeRecorded puts a Service that is new to us on the addresses its status records, but those that others hold and
// do not share with it.
func (a *Allocator) takeRecorded(s *service, c *Claim) {
	s.recorded = slices.Clone(c.Held)
	for _, h := range c.Held {
		if u := a.units[h.Addr]; !holdsAddr(s.lease, h.Addr) && (u == nil || clash(u, s, c) == "") {
			s.lease = append(s.lease, h)
			a.take(s, h)
		}
	}
}

func (a *Allocator) adopt(claims []Claim) []ServiceKey {
	sorted := make([]*Claim, len(claims))
	for i := range claims {
		sorted[i] = &claims[i]
	}
	slices.SortFunc(sorted, func(c, o *Claim) int {
		return cmp.Or(c.Created.Compare(o.Created), c.Service.Compare(o.Service))
	})
	var misfits []ServiceKey
	for _, c := range sorted {
		if len(c.Held) == 0 || a.services[c.Service] != nil {
			continue
		}
		s := &service{claim: *c, reason: Allocated, recorded: slices.Clone(c.Held)}
		a.services[c.Service] = s
		a.byNamespace(c.Service.Namespace)[c.Service] = s
		for _, h := range c.Held {
			if holdsAddr(s.lease, h.Addr) {
				continue
			}
			s.lease = append(s.lease, h)
			a.take(s, h)
			s.misfit = s.misfit || misfit(a.units[h.Addr], s, c) != ""
		}
		if s.misfit {
			misfits = append(misfits, c.Service)
		}
	}
	return misfits
}
