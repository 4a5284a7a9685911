package pools

import (
	"cmp"
	"reflect"
	"slices"
)

func (a *Allocator) setPools(all []Pool) {
	next := arrange(all)
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
	a.rehome(changed)
	a.rerest(changed)
	for name := range changed {
		a.dirty[name] = struct{}{}
		a.lookAtHolders(name)
		a.forget(name)
	}
	a.lookAtWaiting()
}

// arrange decides which pools are in use: the older of two that overlap, then the one first by name.
func arrange(all []Pool) map[string]*pool {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(p, o Pool) int { return cmp.Or(p.Created.Compare(o.Created), cmp.Compare(p.Name, o.Name)) })
	out := make(map[string]*pool, len(all))
	var used []span
	for i := range sorted {
		p := newPool(sorted[i])
		out[p.Name] = p
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
	return out
}

// overlapped names the pool that the new one overlaps: the first by its own listing. used is sorted and disjoint.
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

// offered counts the addresses of the range that the pool gives out.
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

// order builds what finds pools by address and in their order of trial.
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

// rehome finds the pool of every address whose pool changed, or that had none.
func (a *Allocator) rehome(changed map[string]bool) {
	var moved []*unit
	for _, u := range a.homeless {
		moved = append(moved, u)
	}
	for name := range changed {
		if l := a.ledgers[name]; l != nil {
			for _, u := range l.units {
				if u.home != nil {
					moved = append(moved, u)
				}
			}
		}
	}
	for _, u := range moved {
		a.recount(u, func() {
			u.home, u.at, u.owner = nil, 0, u.recordedPool()
			if sp, ok := a.find(u.addr); ok {
				u.home, u.at, u.owner = sp.pool, sp.at, sp.pool.Name
			}
		})
	}
}

// recordedPool is the pool that the first holder of the address got it from.
func (u *unit) recordedPool() string {
	for _, h := range append(slices.Clip(u.holders[0].lease), u.holders[0].leaving...) {
		if h.Addr == u.addr {
			return h.Pool
		}
	}
	return u.owner
}

// reown counts an address that no pool has for the pool that its first holder got it from.
func (a *Allocator) reown(u *unit) {
	if u.home == nil && u.recordedPool() != u.owner {
		a.recount(u, func() { u.owner = u.recordedPool() })
	}
}

// recount moves the address from the ledger it is in to the one it belongs to after the change.
func (a *Allocator) recount(u *unit, change func()) {
	holders := u.holders
	for len(u.holders) > 0 {
		h := u.holders[0]
		u.holders = u.holders[1:]
		a.countNS(u, h.claim.Service.Namespace, -1)
	}
	if a.pools[u.owner] != u.home {
		u.home = nil // the old index is gone, and its counts with it
	}
	a.leave(u)
	u.holders = holders
	change()
	a.enter(u)
	for i, h := range holders {
		u.holders = holders[:i]
		a.countNS(u, h.claim.Service.Namespace, 1)
		a.wakes.look[h.claim.Service] = struct{}{}
	}
	u.holders = holders
}

// rerest counts the rests anew in the pools that changed. A rest lasts as its pool says now.
func (a *Allocator) rerest(changed map[string]bool) {
	var all []rest
	for _, e := range a.rests.at {
		all = append(all, e)
	}
	for _, e := range all {
		sp, ok := a.find(e.addr)
		if !ok || !sp.pool.offers(e.addr) || changed[sp.pool.Name] && sp.pool.ReuseAfter <= 0 {
			a.rests.drop(e.addr)
			continue
		}
		if changed[sp.pool.Name] {
			sp.pool.resting[slot(FamilyOf(e.addr))]++
			e.until = e.freed.Add(sp.pool.ReuseAfter)
			a.rests.put(e)
		}
	}
}

// lookAtHolders has every Service on an address of the pool looked at again.
func (a *Allocator) lookAtHolders(name string) {
	l := a.ledgers[name]
	if l == nil {
		return
	}
	for _, u := range l.units {
		for _, h := range u.holders {
			a.wakes.look[h.claim.Service] = struct{}{}
		}
	}
	for key := range l.draining {
		a.wakes.look[key] = struct{}{}
	}
}

// lookAtWaiting has every Service whose claim is not met looked at again.
func (a *Allocator) lookAtWaiting() {
	for key := range a.unmet {
		a.wakes.look[key] = struct{}{}
	}
}

func (a *Allocator) forget(name string) {
	if a.ledgers[name] != nil {
		a.forgetLedger(name)
	}
}

func (a *Allocator) setNamespace(name string, labels map[string]string, known bool) {
	old, had := a.nsLabel[name]
	if had == known && reflect.DeepEqual(old, labels) {
		return
	}
	if known {
		a.nsLabel[name] = labels
	} else {
		delete(a.nsLabel, name)
	}
	for key := range a.inNS[name] {
		a.wakes.look[key] = struct{}{}
	}
}

func (a *Allocator) poolStatus(name string) (PoolStatus, bool) {
	p := a.pools[name]
	if p == nil {
		return PoolStatus{}, false
	}
	st := PoolStatus{Name: name, State: p.state, Overlaps: p.overlaps}
	if l := a.ledgers[name]; l != nil {
		st.AssignedIPv4, st.AssignedIPv6 = l.assigned[0], l.assigned[1]
		for key := range l.draining {
			st.Draining = append(st.Draining, key)
		}
		slices.SortFunc(st.Draining, ServiceKey.Compare)
	}
	if p.state != PoolReady {
		return st, true
	}
	var left [2]int64
	for i, f := range []Family{IPv4, IPv6} {
		left[i] = p.capacity[i].sub(u128{0, p.used[i]}).int64()
		if p.free[i] != nil && left[i] == 0 {
			st.Exhausted = append(st.Exhausted, f)
		}
	}
	st.AvailableIPv4, st.AvailableIPv6 = left[0], left[1]
	return st, true
}
