package pools

import "slices"

// reindexUnits finds the pool of every address whose pool changed, or that had none.
func (a *Allocator) reindexUnits(changed map[string]bool) {
	var moved []*unit
	for _, u := range a.withoutPool {
		moved = append(moved, u)
	}
	for name := range changed {
		if l := a.ledgers[name]; l != nil {
			for _, u := range l.units {
				if u.pool != nil {
					moved = append(moved, u)
				}
			}
		}
	}
	for _, u := range moved {
		before := u.poolName
		a.recount(u, func() {
			u.pool, u.at, u.poolName = nil, 0, u.recordedPool()
			if sp, ok := a.find(u.addr); ok {
				u.pool, u.at, u.poolName = sp.pool, sp.at, sp.pool.Name
			}
		})
		if u.poolName != before { // its holders are not reachable through the changed pools any more
			a.reevaluateHolder(u.addr)
		}
	}
}

// recordedPool returns the pool from which the first holder got the address.
func (u *unit) recordedPool() string {
	for _, h := range append(slices.Clip(u.holders[0].lease), u.holders[0].releasing...) {
		if h.Addr == u.addr {
			return h.Pool
		}
	}
	return u.poolName
}

// recountPool counts an address without a pool under the pool from which its first holder got it.
func (a *Allocator) recountPool(u *unit) {
	if u.pool == nil && u.recordedPool() != u.poolName {
		a.recount(u, func() { u.poolName = u.recordedPool() })
		a.reevaluateHolder(u.addr) // an unreadable pool accepts only its own holders
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
	if a.pools[u.poolName] != u.pool {
		u.pool = nil // the old index and its counts are gone
	}
	a.removeFromLedger(u)
	u.holders = holders
	change()
	a.addToLedger(u)
	for i, h := range holders {
		u.holders = holders[:i]
		a.countNS(u, h.claim.Service.Namespace, 1)
	}
	u.holders = holders
}

// recountCoolDowns recounts the cool-downs of the pools that changed. A cool-down uses the current reuseAfter of its
// pool.
func (a *Allocator) recountCoolDowns(changed map[string]bool) {
	var all []coolingAddress
	for _, e := range a.cooling.at {
		all = append(all, e)
	}
	for _, e := range all {
		sp, ok := a.find(e.addr)
		if !ok || !a.assigns(sp.pool, e.addr) || changed[sp.pool.Name] && sp.pool.ReuseAfter <= 0 {
			a.cooling.end(e.addr)
			continue
		}
		if changed[sp.pool.Name] {
			sp.pool.coolingDown[slot(FamilyOf(e.addr))]++
			e.until = e.freed.Add(sp.pool.ReuseAfter)
			a.cooling.put(e)
		}
	}
}
