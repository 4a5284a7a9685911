package pools

import "fmt"

// choose picks the address of one family: the requested address, else the held one, else one of the pools in their
// order.
func (a *Allocator) choose(q *query, f Family) choice {
	if x := q.claim.requested(f); x.IsValid() {
		ch := a.chooseExact(q, x)
		ch.exact = true
		if sp, ok := a.find(x); ok && !ch.ok {
			ch.waits.pools = []*pool{sp.pool}
		}
		return ch
	}
	held, has := q.heldIn(f)
	if q.claim.Pool != "" {
		if has && (held.Pool == q.claim.Pool || a.units[held.Addr].poolName == q.claim.Pool) {
			return a.keepHeld(q, held, func() choice { return a.chooseNamed(q, f) })
		}
		return a.chooseNamed(q, f)
	}
	auto := func() choice { return a.pick(q, f, a.candidates(q, f)) }
	if has {
		return a.keepHeld(q, held, auto)
	}
	return auto()
}

// keepHeld keeps the held address, with a reason if the Service may no longer have it. The Service moves to the address
// that other finds in three cases: its sharing key differs from that of the other holders, it gives the address up
// (Reallocate), or a foreign host has the address.
func (a *Allocator) keepHeld(q *query, held Address, other func() choice) choice {
	u := a.units[held.Addr]
	keep := choice{addr: a.named(q, u, held), ok: true, reason: Allocated}
	var cause, agree string
	host := a.hostAgainst(q.claim, held.Addr) != ""
	drains := !a.accepted(u, q.claim) || q.claim.Pool != "" && q.claim.Pool != u.poolName
	if host || drains {
		keep.reason, cause = Draining, a.drainCause(q, u)
	}
	if drains {
		keep.drains = u.poolName
	}
	found := misfit(u, q.self, q.claim)
	if !found.none() {
		keep.reason, cause, agree = SharingRefused, found.why, "make both agree, or "
	}
	switch {
	case keep.reason == Allocated:
		return keep
	case !found.apart && !q.claim.Reallocate && !host:
		keep.message = fmt.Sprintf("%s keeps %s although %s; %sset annotation ironlb.io/reallocate to %s to reallocate it",
			q.claim.Service, held.Addr, cause, agree, q.claim.reallocateTo())
		return keep
	}
	ch := other()
	if ch.ok {
		ch.reallocated = q.claim.Reallocate && (drains || !found.none() && !found.apart)
		return ch
	}
	keep.message = fmt.Sprintf("%s keeps %s although %s, and no other address is available: %s",
		q.claim.Service, held.Addr, cause, ch.message)
	keep.waits.and(ch.waits)
	keep.waits.free = 0
	return keep
}

// named returns the held address with the name of the pool that has it now. A Service that requests its old pool by
// name keeps that name. Otherwise a split of the pool would count as a request to move.
func (a *Allocator) named(q *query, u *unit, held Address) Address {
	if u.pool != nil && q.claim.Pool != held.Pool {
		return Address{Addr: held.Addr, Pool: u.pool.Name}
	}
	if u.pool != nil && held.Pool == "" {
		return Address{Addr: held.Addr, Pool: u.pool.Name}
	}
	return held
}

// reallocateTo returns the annotation value that requests another address.
func (c *Claim) reallocateTo() string {
	if c.ReallocateDone != "" {
		return fmt.Sprintf("another value than %q, which has been carried out,", c.ReallocateDone)
	}
	return `"true"`
}

func (a *Allocator) drainCause(q *query, u *unit) string {
	by, drained := a.drainedBy(u.addr)
	host := a.hostAgainst(q.claim, u.addr)
	switch {
	case drained:
		return fmt.Sprintf("it %s", by)
	case host != "":
		return fmt.Sprintf("another host, %s, answers for it", host)
	case u.pool != nil && q.claim.Pool != "" && q.claim.Pool != u.pool.Name:
		return fmt.Sprintf("it is in pool %s now, not in %s as annotation ironlb.io/ip-pool requests", u.pool.Name, q.claim.Pool)
	case u.pool != nil && !u.pool.offers(u.addr):
		return fmt.Sprintf("pool %s has avoidBuggyIPs", u.pool.Name)
	case u.pool != nil && !u.pool.accepts(a, q.claim):
		return fmt.Sprintf("spec.serviceAllocation of pool %s no longer accepts the Service", u.pool.Name)
	case u.pool != nil:
		return fmt.Sprintf("pool %s no longer lists the namespaces that share it in spec.sharing.namespaces", u.pool.Name)
	}
	if p := a.pools[u.poolName]; p != nil && p.state == PoolOverlaps {
		return fmt.Sprintf("pool %s is not used while it overlaps %s", u.poolName, p.overlaps)
	}
	return "it no longer belongs to any pool"
}

// chooseNamed decides a request for any address of one pool.
func (a *Allocator) chooseNamed(q *query, f Family) choice {
	c := q.claim
	no := func(r Reason, format string, args ...any) choice {
		return choice{reason: r, message: fmt.Sprintf("%s requests pool %s, ", c.Service, c.Pool) + fmt.Sprintf(format, args...)}
	}
	p := a.pools[c.Pool]
	switch {
	case p == nil:
		return no(PoolNotFound, "which does not exist: create it, or correct annotation ironlb.io/ip-pool")
	case p.state == PoolOverlaps:
		return no(PoolOverlapping, "which is not used while it overlaps %s: fix the overlap, or request another pool", p.overlaps)
	case p.state == PoolNotRead:
		return no(PoolUnreadable, "which is invalid: see its condition Ready and fix it, or request another pool")
	case p.state != PoolReady:
		return no(PoolOverlapping, "which is not used because two of its own entries overlap: list every address once")
	case !p.accepts(a, c):
		return no(PoolNotAdmitting, "whose spec.serviceAllocation does not accept the Service: request another pool, or change this one")
	case p.free[slot(f)] == nil:
		return no(PoolLacksFamily, "which has no %s addresses: add some, or request another pool", f)
	}
	return a.pick(q, f, []*pool{p})
}
