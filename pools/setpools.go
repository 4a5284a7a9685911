package pools

import (
	"cmp"
	"reflect"
	"slices"
)

// SetPools replaces the full set of pools. No held address is lost: see Draining.
func (a *Allocator) SetPools(all []Pool) {
	next, _ := arrange(all)
	changed := map[string]bool{}
	for name, p := range next {
		old := a.pools[name]
		if old != nil && old.state == p.state && old.overlaps == p.overlaps && reflect.DeepEqual(old.Pool, p.Pool) {
			next[name] = old
			continue
		}
		changed[name] = true
	}
	for name := range a.pools {
		if next[name] == nil {
			changed[name] = true
		}
	}
	if len(changed) == 0 {
		return
	}
	a.pools = next
	a.order()
	a.withholdIn(changed)
	a.reindexUnits(changed)
	a.recountCoolDowns(changed)
	for name := range changed {
		a.dirty[name] = struct{}{}
		a.reevaluateHolders(name)
		a.pruneIfPresent(name)
	}
	for _, s := range a.unmet {
		a.mark(s)
	}
}

// arrange selects the pools in use and their ranges. Of two that overlap, the older is used, then the first by name.
func arrange(all []Pool) (map[string]*pool, []span) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(p, o Pool) int { return cmp.Or(p.Created.Compare(o.Created), cmp.Compare(p.Name, o.Name)) })
	out := make(map[string]*pool, len(all))
	var used []span
	for i := range sorted {
		p := newPool(sorted[i])
		out[p.Name] = p
		if p.Unreadable {
			p.Ranges, p.state = nil, PoolNotRead
			continue
		}
		if _, _, bad := firstOverlap(p.Ranges); bad {
			p.state = PoolInvalid
			continue
		}
		if o := overlapped(used, p); o != "" {
			p.state, p.overlaps = PoolOverlaps, o
			continue
		}
		for _, r := range p.Ranges {
			at, _ := slices.BinarySearchFunc(used, r, func(s span, r Range) int { return s.First.Compare(r.First) })
			used = slices.Insert(used, at, span{Range: r, pool: p})
		}
	}
	return out, used
}

// overlapped returns the name of the pool that the new one overlaps, first in the new pool's order. used is sorted and
// disjoint.
func overlapped(used []span, p *pool) string {
	for _, r := range p.Ranges {
		i, _ := slices.BinarySearchFunc(used, r, func(s span, r Range) int { return s.First.Compare(r.First) })
		for _, j := range []int{i - 1, i} {
			if j >= 0 && j < len(used) && used[j].Overlaps(r) {
				return used[j].pool.Name
			}
		}
	}
	return ""
}

func newPool(in Pool) *pool {
	p := &pool{Pool: in, state: PoolReady}
	p.Ranges = slices.Clone(in.Ranges)
	for f, fam := range []Family{IPv4, IPv6} {
		var ranges []Range
		for _, r := range p.Ranges {
			if r.Family() == fam {
				ranges = append(ranges, r)
				p.capacity[f] = p.capacity[f].add(p.offered(r))
			}
		}
		if len(ranges) > 0 {
			p.free[f] = newFreeIndex(ranges)
		}
	}
	return p
}

// offered counts the addresses of the range that the pool assigns.
func (p *pool) offered(r Range) u128 {
	n := r.size()
	if !p.AvoidBuggyIPs || r.Family() != IPv4 {
		return n
	}
	first, last := fromAddr(r.First).lo&0xffffffff, fromAddr(r.Last).lo&0xffffffff
	upTo := func(x uint64) uint64 { // addresses below x that end in .0 or .255
		return (x+255)/256 + x/256
	}
	return n.sub(u128{0, upTo(last+1) - upTo(first)})
}

// order builds the indexes of the pools: by address, and in the order of allocation.
func (a *Allocator) order() {
	a.spans, a.open, a.bound, a.quotas = nil, nil, nil, false
	for _, p := range a.pools {
		a.quotas = a.quotas || p.NamespaceQuota.Set
		if p.state != PoolReady {
			continue
		}
		var at [2]int
		for _, r := range p.Ranges {
			i := slot(r.Family())
			a.spans = append(a.spans, span{Range: r, pool: p, at: at[i]})
			at[i]++
		}
		switch {
		case p.AutoAssign && p.Allocation.Set:
			a.bound = append(a.bound, p)
		case p.AutoAssign:
			a.open = append(a.open, p)
		}
	}
	slices.SortFunc(a.spans, func(s, o span) int { return s.First.Compare(o.First) })
	slices.SortFunc(a.open, func(p, o *pool) int { return cmp.Compare(p.Name, o.Name) })
	slices.SortFunc(a.bound, func(p, o *pool) int {
		return cmp.Or(cmp.Compare(uint32(p.Allocation.Priority-1), uint32(o.Allocation.Priority-1)), cmp.Compare(p.Name, o.Name))
	})
}

// reevaluateHolders marks every holder of an address of the pool for re-evaluation.
func (a *Allocator) reevaluateHolders(name string) {
	l := a.ledgers[name]
	if l == nil {
		return
	}
	for _, u := range l.units {
		for _, h := range u.holders {
			a.mark(h)
		}
	}
	for key := range l.draining {
		a.mark(a.services[key])
	}
}

func (a *Allocator) pruneIfPresent(name string) {
	if a.ledgers[name] != nil {
		a.pruneLedger(name)
	}
}
