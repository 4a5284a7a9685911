package pools

import "slices"

// PoolState is the state of a pool: in use, or the reason why not.
type PoolState string

// The states of a pool.
const (
	// PoolReady: in use.
	PoolReady PoolState = "Ready"
	// PoolOverlaps: not used, because it overlaps an older pool.
	PoolOverlaps PoolState = "Overlapping"
	// PoolInvalid: not used, because two of its own ranges overlap.
	PoolInvalid PoolState = "Invalid"
	// PoolNotRead: not used, because it is Unreadable.
	PoolNotRead PoolState = "Unreadable"
)

// PoolStatus is the outcome for a pool. Counts are at most the largest int64.
type PoolStatus struct {
	Name  string
	State PoolState
	// Overlaps is the older pool that this one overlaps, when State is PoolOverlaps.
	Overlaps string
	// Assigned is the number of addresses that Services hold from the pool. A shared address counts once.
	AssignedIPv4, AssignedIPv6 int64
	// Available is the number of free addresses. A pool not in use has none.
	AvailableIPv4, AvailableIPv6 int64
	// Exhausted lists the families of the pool without a free address.
	Exhausted []Family
	// Draining lists the Services that keep an address for which no pool accepts them any more, in order.
	Draining []ServiceKey
	// CoolDowns are the addresses in cool-down for the pool's reuseAfter, the latest freed first, then by address. They
	// are included in the available ones.
	CoolDowns []CoolDown
	// Withheld are the addresses of the pool that something else has, in order. They are not included in the available
	// ones.
	Withheld []WithheldAddress
}

// PoolStatus returns the state and counts of the pool. False: no such pool.
func (a *Allocator) PoolStatus(name string) (PoolStatus, bool) {
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
		left[i] = p.capacity[i].sub(u128{0, p.used[i] + p.withheld[i]}).int64()
		if p.free[i] != nil && left[i] == 0 {
			st.Exhausted = append(st.Exhausted, f)
		}
	}
	st.Withheld = a.withheldInPool(p)
	st.CoolDowns = a.coolDowns(p)
	st.AvailableIPv4, st.AvailableIPv6 = left[0], left[1]
	return st, true
}
