package pools

import (
	"fmt"
	"net/netip"
)

// chooseExact decides a request for one address.
func (a *Allocator) chooseExact(q *query, x netip.Addr) choice {
	c := q.claim
	if held, has := q.heldIn(FamilyOf(x)); has && held.Addr == x {
		return a.keepExact(q, held)
	}
	no := func(r Reason, format string, args ...any) choice {
		return choice{reason: r, message: fmt.Sprintf("%s requests %s, ", c.Service, x) + fmt.Sprintf(format, args...)}
	}
	sp, ok := a.find(x)
	if !ok {
		if p := a.unusable(x); p != nil && p.state == PoolInvalid {
			return no(PoolOverlapping, "but its pool %s is not used because two of its own entries overlap: list every address once", p.Name)
		} else if p != nil {
			return no(PoolOverlapping, "but its pool %s is not used while it overlaps %s: fix the overlap, or request another address", p.Name, p.overlaps)
		}
		return no(AddressOutsidePools, "which is in no pool: request an address of a pool, or add it to spec.addresses of one")
	}
	p := sp.pool
	by, withheld := a.withheldFrom(c, x)
	switch {
	case c.Pool != "" && c.Pool != p.Name:
		return no(InvalidRequest, "which is in pool %s, and for pool %s: remove annotation ironlb.io/ip-pool or request an address of that pool", p.Name, c.Pool)
	case !p.offers(x):
		return no(AddressAvoided, "but pool %s has avoidBuggyIPs: request an address that does not end in .0 or .255", p.Name)
	case withheld:
		return no(AddressWithheld, "which %s: request another address", by)
	case !p.accepts(a, c):
		return no(PoolNotAdmitting, "but spec.serviceAllocation of pool %s does not accept the Service: request another address, or change the pool", p.Name)
	}
	u := a.units[x]
	if u != nil {
		if found := a.joinable(u, q.self, c); !found.none() {
			if c.SharingKey == "" {
				return no(AddressTaken,
					"which %s holds: request another one, or give both the same ironlb.io/sharing-key", found.with)
			}
			return no(SharingRefused, "but %s: request another address, or make both agree", found.why)
		}
	}
	if !a.quotaAllows(q, p, FamilyOf(x), x) {
		ch := no(QuotaReached, "but %s", quotaText(p, c))
		ch.quota = true
		return ch
	}
	return choice{addr: Address{x, p.Name}, ok: true, reason: Allocated}
}

// keepExact keeps the address that the Service both holds and requests.
func (a *Allocator) keepExact(q *query, held Address) choice {
	u := a.units[held.Addr]
	none := func() choice {
		return choice{message: fmt.Sprintf("it requests %s; request another one, or make the Services agree", held.Addr)}
	}
	if u.pool != nil && q.claim.Pool != "" && q.claim.Pool != u.pool.Name && q.claim.Pool != held.Pool {
		return choice{reason: InvalidRequest, message: fmt.Sprintf("%s requests %s, which is in pool %s, and for pool %s: remove one of the two requests",
			q.claim.Service, held.Addr, u.pool.Name, q.claim.Pool)}
	}
	return a.keepHeld(q, held, none)
}

// unusable returns the pool not in use that lists the address.
func (a *Allocator) unusable(x netip.Addr) *pool {
	var found *pool
	for _, p := range a.pools {
		if p.state == PoolReady || found != nil && found.Name < p.Name {
			continue
		}
		for _, r := range p.Ranges {
			if r.Contains(x) {
				found = p
			}
		}
	}
	return found
}
