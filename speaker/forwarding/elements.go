package forwarding

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/incremental"
)

// count adds one use of some elements and removes one use of others.
func (p *Planner) count(more, less []ipvs.Element) {
	for _, e := range more {
		if _, there := p.forwarding.Filter[e]; there {
			p.shared[e]++
			continue
		}
		p.forwarding.Filter[e] = struct{}{}
		p.changed.Elements[e] = struct{}{}
	}
	for _, e := range less {
		if others := p.shared[e]; others > 0 {
			incremental.Set(p.shared, e, others-1, others > 1)
			continue
		}
		delete(p.forwarding.Filter, e)
		p.changed.Elements[e] = struct{}{}
	}
}

// countLocal counts the virtual servers that make an address local.
func (p *Planner) countLocal(addr netip.Addr, now, before bool) {
	n := p.locals[addr]
	switch {
	case now && !before:
		n++
	case before && !now:
		n--
	default:
		return
	}
	_, was := p.forwarding.Local[addr]
	incremental.Set(p.locals, addr, n, n > 0)
	incremental.Set(p.forwarding.Local, addr, struct{}{}, n > 0)
	if was != (n > 0) {
		p.changed.Local[addr] = struct{}{}
	}
}
