package pools

import "slices"

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
		before := u.owner
		a.recount(u, func() {
			u.home, u.at, u.owner = nil, 0, u.recordedPool()
			if sp, ok := a.find(u.addr); ok {
				u.home, u.at, u.owner = sp.pool, sp.at, sp.pool.Name
			}
		})
		if u.owner != before { // its holders are not reachable through the changed pools any more
			a.lookAtHolder(u.addr)
		}
	}
}

// recordedPool returns the pool from which the first holder got the address.
func (u *unit) recordedPool() string {
	for _, h := range append(slices.Clip(u.holders[0].lease), u.holders[0].leaving...) {
		if h.Addr == u.addr {
			return h.Pool
		}
	}
	return u.owner
}

// reown counts an address without a pool under the pool from which its first holder got it.
func (a *Allocator) reown(u *unit) {
	if u.home == nil && u.recordedPool() != u.owner {
		a.recount(u, func() { u.owner = u.recordedPool() })
		a.lookAtHolder(u.addr) // an unreadable pool admits only its own holders
	}
}

// recount moves the address from its current ledger to the ledger that it belongs to after the change.
func (a *Allocator) recount(u *unit, change func()) {
	holders := u.holders
	for len(u.holders) > 0 {
		h := u.holders[0]
		u.holders = u.holders[1:]
		a.countNS(u, h.claim.Service.Namespace, -1)
	}
	if a.pools[u.owner] != u.home {
		u.home = nil // the old index and its counts are gone
	}
	a.leave(u)
	u.holders = holders
	change()
	a.enter(u)
	for i, h := range holders {
		u.holders = holders[:i]
		a.countNS(u, h.claim.Service.Namespace, 1)
	}
	u.holders = holders
}

// rerest recounts the cool-downs of the pools that changed. A cool-down uses the current reuseAfter of its pool.
func (a *Allocator) rerest(changed map[string]bool) {
	var all []rest
	for _, e := range a.rests.at {
		all = append(all, e)
	}
	for _, e := range all {
		sp, ok := a.find(e.addr)
		if !ok || !a.gives(sp.pool, e.addr) || changed[sp.pool.Name] && sp.pool.ReuseAfter <= 0 {
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
