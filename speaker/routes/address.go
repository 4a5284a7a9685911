package routes

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// decideAddress selects the prefixes that announce an address, and adds changed prefixes to why.
func (p *Planner) decideAddress(v *view.View, addr netip.Addr, why map[netip.Prefix]view.Reason) {
	d := &p.routing
	before := p.addrs[addr]
	s := p.sharers(v, addr, before.announced)
	reason, by, covered := p.evaluateAddress(v, addr, s, before.announced)
	after := routedAddress{announced: len(by) > 0, by: by}
	incremental.Set(p.addrs, addr, after, after.announced)
	for _, c := range by {
		if !slices.Contains(before.by, c) {
			p.count(c, 1)
			why[c.prefix] = reason
		}
	}
	for _, c := range before.by {
		if slices.Contains(by, c) {
			continue
		}
		p.count(c, -1)
		why[c.prefix] = reason
	}
	routed := Routed{Reason: reason}
	for _, c := range by {
		routed.Prefixes = append(routed.Prefixes, c.prefix)
	}
	slices.SortFunc(routed.Prefixes, netip.Prefix.Compare)
	routed.Prefixes = slices.Compact(routed.Prefixes)
	was, had := d.Routed[addr]
	if had == covered && (!had || was.equal(routed)) {
		return
	}
	p.changed.Routed[addr] = struct{}{}
	under := incremental.Index[netip.Prefix, netip.Addr](d.Under)
	for _, prefix := range was.Prefixes {
		under.Remove(prefix, addr)
	}
	for _, prefix := range routed.Prefixes {
		if !prefix.IsSingleIP() {
			under.Add(prefix, addr)
		}
	}
	incremental.Set(d.Routed, addr, routed, covered)
}

func (p *Planner) count(c contribution, n int) {
	counts := p.counts[c.prefix]
	if counts == nil {
		counts = map[string]int{}
		p.counts[c.prefix] = counts
	}
	n += counts[c.ad]
	incremental.Set(counts, c.ad, n, n > 0)
	if len(counts) == 0 {
		delete(p.counts, c.prefix)
	}
}
