package pools

import (
	"net/netip"
	"slices"
	"time"
)

// pool is a Pool with the indexes that find its free addresses.
type pool struct {
	Pool
	state         PoolState
	loosened      bool // a Service may get what it could not get before
	overlaps      string
	free          [2]*freeIndex // by slot
	capacity      [2]u128       // addresses it assigns
	used          [2]uint64     // of those, in use by a Service
	coolingDown   [2]uint64     // of those, in cool-down
	withheld      [2]uint64     // of those, addresses of nodes and foreign hosts, in use or not; they count in nothing else
	withheldAddrs map[netip.Addr]struct{}
}

// span is one range of a pool in use.
type span struct {
	Range
	pool *pool
	at   int // index among the pool's ranges of the family
}

// service is the state of a Service that holds or waits for an address.
type service struct {
	claim     Claim
	lease     []Address
	releasing []Address // given up, but still in its status as of the last write
	reason    Reason
	message   string
	drains    []string // pools whose address it keeps without being accepted
	waits
	marked bool // in Allocator.marked
	misfit bool // it no longer agrees with its sharers, and no other address is available
	// reallocated: its Reallocate gave up an address, and the completion is not written yet
	reallocated bool
	restored    bool // its status shows nothing, and it held its addresses before
	// recorded is the lease in the Service's status: Held when it is new, then the last lease that was settled.
	recorded []Address
}

// unit is an address in use.
type unit struct {
	addr     netip.Addr
	poolName string // the pool it is counted in
	pool     *pool  // the pool in use that contains it, if any
	at       int    // range of pool
	holders  []*service
	key      string // sharing key, when all holders have the same one
}

// ledger counts the addresses held from one pool.
type ledger struct {
	units    map[netip.Addr]*unit
	assigned [2]int64
	byNS     map[string]int64 // addresses that a namespace holds
	draining map[ServiceKey]struct{}
}

// slot is the index of a family in arrays by family.
func slot(f Family) int {
	if f == IPv4 {
		return 0
	}
	return 1
}

func (a *Allocator) ledger(name string) *ledger {
	l := a.ledgers[name]
	if l == nil {
		l = &ledger{units: map[netip.Addr]*unit{}, byNS: map[string]int64{}, draining: map[ServiceKey]struct{}{}}
		a.ledgers[name] = l
	}
	return l
}

// find returns the range in use that contains the address.
func (a *Allocator) find(addr netip.Addr) (span, bool) { return findSpan(a.spans, addr) }

// findSpan returns the range that contains the address. spans is sorted and disjoint.
func findSpan(spans []span, addr netip.Addr) (span, bool) {
	i, exact := slices.BinarySearchFunc(spans, addr, func(s span, x netip.Addr) int { return s.First.Compare(x) })
	if !exact {
		i--
	}
	if i < 0 || !spans[i].Contains(addr) {
		return span{}, false
	}
	return spans[i], true
}

// offers reports whether the pool's own rules allow the address, which must lie in the pool.
func (p *pool) offers(addr netip.Addr) bool { return !p.AvoidBuggyIPs || !buggy(addr) }

// buggy reports whether the address ends in .0 or .255, which some routers and clients drop.
func buggy(addr netip.Addr) bool {
	if !addr.Is4() {
		return false
	}
	last := addr.As4()[3]
	return last == 0 || last == 255
}

func (p *pool) accepts(a *Allocator, c *Claim) bool {
	labels, known := a.nsLabel[c.Service.Namespace]
	return p.Allocation.accepts(c, labels, known)
}

// autoFree returns the number of addresses available for auto-assignment.
func (p *pool) autoFree(f Family) u128 {
	i := slot(f)
	return p.capacity[i].sub(u128{0, p.used[i] + p.coolingDown[i] + p.withheld[i]})
}

// hold puts the Service on the address.
func (a *Allocator) hold(s *service, want Address) {
	u := a.units[want.Addr]
	if u == nil {
		a.endCoolDown(want.Addr)
		u = &unit{addr: want.Addr, poolName: want.Pool}
		if sp, ok := a.find(want.Addr); ok {
			u.pool, u.at, u.poolName = sp.pool, sp.at, sp.pool.Name
		}
		a.units[want.Addr] = u
		a.addToLedger(u)
	}
	a.countNS(u, s.claim.Service.Namespace, 1)
	i, _ := slices.BinarySearchFunc(u.holders, s.claim.Service, func(h *service, k ServiceKey) int { return h.claim.Service.Compare(k) })
	u.holders = slices.Insert(u.holders, i, s)
}

// unhold takes the Service off the address and reports whether it was the last holder.
func (a *Allocator) unhold(s *service, addr netip.Addr, now time.Time) bool {
	u := a.units[addr]
	u.holders = slices.DeleteFunc(u.holders, func(h *service) bool { return h == s })
	a.countNS(u, s.claim.Service.Namespace, -1)
	if len(u.holders) > 0 {
		return false
	}
	a.removeFromLedger(u)
	delete(a.units, addr)
	a.startCoolDown(u.pool, u.at, addr, s.claim.Service, now)
	return true
}

// addToLedger counts the address in its pool; removeFromLedger is the reverse.
func (a *Allocator) addToLedger(u *unit) {
	l := a.ledger(u.poolName)
	l.units[u.addr] = u
	l.assigned[slot(FamilyOf(u.addr))]++
	if u.pool != nil && a.assigns(u.pool, u.addr) {
		u.pool.used[slot(FamilyOf(u.addr))]++
	}
	if u.pool == nil {
		a.withoutPool[u.addr] = u
	}
	a.dirty[u.poolName] = struct{}{}
}

func (a *Allocator) removeFromLedger(u *unit) {
	l := a.ledger(u.poolName)
	delete(l.units, u.addr)
	delete(a.withoutPool, u.addr)
	l.assigned[slot(FamilyOf(u.addr))]--
	if u.pool != nil && a.assigns(u.pool, u.addr) {
		u.pool.used[slot(FamilyOf(u.addr))]--
	}
	a.dirty[u.poolName] = struct{}{}
	a.pruneLedger(u.poolName)
}

// pruneLedger deletes the ledger of a removed pool when no address of it is held any more.
func (a *Allocator) pruneLedger(name string) {
	if l := a.ledgers[name]; a.pools[name] == nil && len(l.units)+len(l.byNS)+len(l.draining) == 0 {
		delete(a.ledgers, name)
	}
}

// countNS counts the address for the namespace unless another holder is in it. u.holders must not contain the holder
// itself.
func (a *Allocator) countNS(u *unit, ns string, by int64) {
	if by < 0 {
		a.loosen(a.pools[u.poolName])
	}
	if slices.ContainsFunc(u.holders, func(h *service) bool { return h.claim.Service.Namespace == ns }) {
		return
	}
	l := a.ledger(u.poolName)
	if l.byNS[ns] += by; l.byNS[ns] == 0 {
		delete(l.byNS, ns)
	}
}

// startCoolDown starts the cool-down of a freed address, or returns the address to its pool.
func (a *Allocator) startCoolDown(p *pool, at int, addr netip.Addr, by ServiceKey, now time.Time) {
	if p == nil || !a.assigns(p, addr) {
		return
	}
	if p.ReuseAfter > 0 {
		a.cooling.put(coolingAddress{addr: addr, freed: now, until: now.Add(p.ReuseAfter), by: by})
		p.coolingDown[slot(FamilyOf(addr))]++
		if s := a.services[by]; s != nil && s.reason != Allocated {
			a.mark(s) // it may get it back
		}
		return
	}
	a.returnToFree(p, at, addr)
}

func (a *Allocator) returnToFree(p *pool, at int, addr netip.Addr) {
	p.free[slot(FamilyOf(addr))].release(at, addr)
	a.loosen(p)
}

// endCoolDown ends the cool-down of an address that is being taken.
func (a *Allocator) endCoolDown(addr netip.Addr) {
	if _, ok := a.cooling.at[addr]; !ok {
		return
	}
	a.cooling.end(addr)
	if sp, ok := a.find(addr); ok {
		sp.pool.coolingDown[slot(FamilyOf(addr))]--
	}
}

// expire returns every address whose cool-down is over to its pool.
func (a *Allocator) expire(now time.Time) {
	for _, addr := range a.cooling.due(now) {
		if sp, ok := a.find(addr); ok {
			sp.pool.coolingDown[slot(FamilyOf(addr))]--
			a.returnToFree(sp.pool, sp.at, addr)
		}
	}
}
