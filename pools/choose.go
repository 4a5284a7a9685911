package pools

import (
	"fmt"
	"net/netip"
	"strings"
)

// choose picks the address of one family: what is held, what is asked, then the pools in their order.
func (a *Allocator) choose(q *query, f Family) choice {
	if x := q.claim.asked(f); x.IsValid() {
		ch := a.chooseExact(q, x)
		ch.exact = true
		return ch
	}
	held, has := q.heldIn(f)
	if q.claim.Pool != "" {
		if has && (held.Pool == q.claim.Pool || a.units[held.Addr].owner == q.claim.Pool) {
			return a.stay(q, held, func() choice { return a.chooseNamed(q, f) })
		}
		return a.chooseNamed(q, f)
	}
	auto := func() choice { return a.pick(q, f, a.candidates(q, f)) }
	if has {
		return a.stay(q, held, auto)
	}
	return auto()
}

// stay keeps the held address, unless its sharers and the Service no longer agree, or no pool admits it and the Service
// gives it up. other finds another one.
func (a *Allocator) stay(q *query, held Address, other func() choice) choice {
	u := a.units[held.Addr]
	if why := misfit(u, q.self, q.claim); why != "" {
		ch := other()
		if !ch.ok {
			ch.reason = SharingRefused
			ch.message = fmt.Sprintf("%s keeps %s although %s, because there is no other address for it: %s", q.claim.Service, held.Addr, why, ch.message)
			ch.waits = append(ch.waits, waitKey{addr: held.Addr})
		}
		return ch
	}
	keep := choice{addr: a.named(q, u, held), ok: true, reason: Allocated}
	if a.admitted(u, q.claim) && (q.claim.Pool == "" || q.claim.Pool == u.owner) {
		return keep
	}
	keep.reason, keep.drains = Draining, u.owner
	keep.message = fmt.Sprintf("%s keeps %s although %s; set annotation ironlb.io/reallocate to \"true\" to give it another one", q.claim.Service, held.Addr, a.drainCause(q, u))
	if !q.claim.Reallocate {
		return keep
	}
	ch := other()
	if ch.ok {
		return ch
	}
	keep.message = fmt.Sprintf("%s keeps %s although %s, because there is no other address for it: %s", q.claim.Service, held.Addr, a.drainCause(q, u), ch.message)
	keep.waits = ch.waits
	return keep
}

// named is the held address under the name of the pool that has it now. A Service that asks for its old pool by name
// stays on that name, or a split of the pool would read as a wish to move.
func (a *Allocator) named(q *query, u *unit, held Address) Address {
	if u.home != nil && q.claim.Pool != held.Pool {
		return Address{Addr: held.Addr, Pool: u.home.Name}
	}
	if u.home != nil && held.Pool == "" {
		return Address{Addr: held.Addr, Pool: u.home.Name}
	}
	return held
}

func (a *Allocator) drainCause(q *query, u *unit) string {
	switch {
	case u.home != nil && q.claim.Pool != "" && q.claim.Pool != u.home.Name:
		return fmt.Sprintf("it is in pool %s now, not in %s as annotation ironlb.io/ip-pool asks", u.home.Name, q.claim.Pool)
	case u.home != nil && !u.home.offers(u.addr):
		return fmt.Sprintf("pool %s has avoidBuggyIPs", u.home.Name)
	case u.home != nil && !u.home.admits(a, q.claim):
		return fmt.Sprintf("spec.serviceAllocation of pool %s does not admit the Service any more", u.home.Name)
	case u.home != nil:
		return fmt.Sprintf("pool %s does not list the namespaces that share it in spec.sharing.namespaces any more", u.home.Name)
	}
	if p := a.pools[u.owner]; p != nil && p.state == PoolOverlaps {
		return fmt.Sprintf("pool %s is not used while it overlaps %s", u.owner, p.overlaps)
	}
	return "no pool has that address any more"
}

// chooseExact answers a request for one address.
func (a *Allocator) chooseExact(q *query, x netip.Addr) choice {
	c := q.claim
	if held, has := q.heldIn(FamilyOf(x)); has && held.Addr == x {
		return a.stayExact(q, held)
	}
	no := func(r Reason, waits []waitKey, format string, args ...any) choice {
		return choice{reason: r, waits: waits, message: fmt.Sprintf("%s asks for %s, ", c.Service, x) + fmt.Sprintf(format, args...)}
	}
	sp, ok := a.find(x)
	if !ok {
		if p := a.unusable(x); p != nil {
			return no(PoolOverlapping, nil, "but its pool %s is not used while it overlaps %s: mend the overlap, or ask for another address", p.Name, p.overlaps)
		}
		return no(AddressOutsidePools, nil, "which is in no pool: ask for an address of a pool, or add it to spec.addresses of one")
	}
	p := sp.pool
	switch {
	case c.Pool != "" && c.Pool != p.Name:
		return no(InvalidRequest, nil, "which is in pool %s, and for pool %s: remove annotation ironlb.io/ip-pool or ask for an address of that pool", p.Name, c.Pool)
	case !p.offers(x):
		return no(AddressAvoided, nil, "but pool %s has avoidBuggyIPs: ask for an address that does not end in .0 or .255", p.Name)
	case !p.admits(a, c):
		return no(PoolNotAdmitting, nil, "but spec.serviceAllocation of pool %s does not admit the Service: ask for another address, or change the pool", p.Name)
	}
	u := a.units[x]
	if u != nil {
		if why := a.joinable(u, q.self, c); why != "" {
			waits := []waitKey{{addr: x}}
			if c.SharingKey == "" {
				return no(AddressTaken, waits, "which %s holds: ask for another one, or give both the same ironlb.io/sharing-key", u.holders[0].claim.Service)
			}
			return no(SharingRefused, waits, "but %s: ask for another address, or let both agree", why)
		}
	}
	if !a.quotaAllows(q, p, FamilyOf(x), x) {
		ch := no(QuotaReached, []waitKey{{pool: p.Name, ns: c.Service.Namespace}}, "but %s", quotaText(p, c))
		ch.quota = true
		return ch
	}
	_, resting := a.rests.at[x]
	return choice{addr: Address{x, p.Name}, ok: true, takes: u == nil && !resting, reason: Allocated}
}

// stayExact keeps the address that the Service both holds and asks for.
func (a *Allocator) stayExact(q *query, held Address) choice {
	u := a.units[held.Addr]
	none := func() choice {
		return choice{message: fmt.Sprintf("it asks for %s; ask for another one, or let the Services agree", held.Addr)}
	}
	if u.home != nil && q.claim.Pool != "" && q.claim.Pool != u.home.Name && q.claim.Pool != held.Pool {
		return choice{reason: InvalidRequest, message: fmt.Sprintf("%s asks for %s, which is in pool %s, and for pool %s: remove one of the two requests",
			q.claim.Service, held.Addr, u.home.Name, q.claim.Pool)}
	}
	ch := a.stay(q, held, none)
	return ch
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

// chooseNamed answers a request for any address of one pool.
func (a *Allocator) chooseNamed(q *query, f Family) choice {
	c := q.claim
	no := func(r Reason, format string, args ...any) choice {
		return choice{reason: r, message: fmt.Sprintf("%s asks for pool %s, ", c.Service, c.Pool) + fmt.Sprintf(format, args...)}
	}
	p := a.pools[c.Pool]
	switch {
	case p == nil:
		return no(PoolNotFound, "which does not exist: create it, or correct annotation ironlb.io/ip-pool")
	case p.state == PoolOverlaps:
		return no(PoolOverlapping, "which is not used while it overlaps %s: mend the overlap, or ask for another pool", p.overlaps)
	case p.state != PoolReady:
		return no(PoolOverlapping, "which is not used because two of its own entries overlap: list every address once")
	case !p.admits(a, c):
		return no(PoolNotAdmitting, "whose spec.serviceAllocation does not admit the Service: ask for another pool, or change this one")
	case p.free[slot(f)] == nil:
		return no(PoolLacksFamily, "which has no %s addresses: add some, or ask for another pool", f)
	}
	return a.pick(q, f, []*pool{p})
}

// candidates are the pools that auto-assign the family to the claim, in order.
func (a *Allocator) candidates(q *query, f Family) []*pool {
	var out []*pool
	for _, p := range a.bound {
		if p.free[slot(f)] != nil && p.admits(a, q.claim) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return a.open
	}
	return append(out, a.open...)
}

// pick takes the first address to be had from the pools: in each, one that the Service freed itself and that still
// rests, then one to share, then the lowest free one.
func (a *Allocator) pick(q *query, f Family, from []*pool) choice {
	var full, quota []string
	var waits []waitKey
	var last *pool
	for _, p := range from {
		if p.free[slot(f)] == nil {
			continue
		}
		if ch := a.pickFrom(q, f, p); ch.ok {
			return ch
		} else if ch.reason == QuotaReached {
			quota = append(quota, p.Name)
			last = p
			waits = append(waits, waitKey{pool: p.Name, ns: q.claim.Service.Namespace})
		} else {
			full = append(full, p.Name)
		}
		waits = append(waits, waitKey{pool: p.Name, family: f})
	}
	if q.claim.SharingKey != "" && len(waits) > 0 {
		waits = append(waits, waitKey{key: q.claim.SharingKey})
	}
	switch {
	case len(full)+len(quota) == 0:
		return choice{reason: NoPool, message: fmt.Sprintf("no pool auto-assigns %s addresses to %s: add a pool with autoAssign true that admits it, or name a pool in annotation ironlb.io/ip-pool", f, q.claim.Service)}
	case len(full) == 0:
		return choice{reason: QuotaReached, quota: true, waits: waits, message: fmt.Sprintf("%s gets no %s address: %s", q.claim.Service, f, quotaText(last, q.claim))}
	}
	message := fmt.Sprintf("%s gets no %s address: no address is free in %s: add addresses to spec.addresses, or delete a Service", q.claim.Service, f, poolList(full))
	return choice{reason: PoolExhausted, quota: len(quota) > 0, waits: waits, message: message}
}

func poolList(names []string) string {
	if len(names) == 1 {
		return "pool " + names[0]
	}
	return "pools " + strings.Join(names, ", ")
}

func (a *Allocator) pickFrom(q *query, f Family, p *pool) choice {
	if x := a.restedBy(q.claim.Service, p, f); x.IsValid() && a.quotaAllows(q, p, f, x) {
		return choice{addr: Address{x, p.Name}, ok: true, reason: Allocated}
	}
	if u := a.join(q, p, f); u != nil && a.quotaAllows(q, p, f, u.addr) {
		return choice{addr: Address{u.addr, p.Name}, ok: true, reason: Allocated}
	}
	if !a.quotaAllows(q, p, f, netip.Addr{}) {
		return choice{reason: QuotaReached}
	}
	x, ok := p.free[slot(f)].lowest(func(x netip.Addr) bool { return a.busy(p, x) })
	if !ok {
		return choice{reason: PoolExhausted}
	}
	return choice{addr: Address{x, p.Name}, ok: true, takes: true, reason: Allocated}
}

// restedBy returns the first address of the pool, in listed order, that the Service freed and that still rests.
func (a *Allocator) restedBy(k ServiceKey, p *pool, f Family) netip.Addr {
	var best span
	var found netip.Addr
	for _, x := range a.rests.by[k] {
		sp, ok := a.find(x)
		if !ok || sp.pool != p || FamilyOf(x) != f {
			continue
		}
		if !found.IsValid() || sp.at < best.at || sp.at == best.at && x.Less(found) {
			best, found = sp, x
		}
	}
	return found
}

// busy says whether auto-assignment must pass over the address.
func (a *Allocator) busy(p *pool, x netip.Addr) bool {
	if _, used := a.units[x]; used {
		return true
	}
	_, resting := a.rests.at[x]
	return resting || !p.offers(x)
}

// quotaAllows says whether the namespace may hold one more address of the pool, x, instead of what the Service holds of
// the family now. An address that the namespace holds already costs nothing.
func (a *Allocator) quotaAllows(q *query, p *pool, f Family, x netip.Addr) bool {
	if !p.NamespaceQuota.Set || x.IsValid() && (a.heldByNamespace(q, x) || holdsAddr(q.self.leaving, x)) {
		return true
	}
	n := q.delta[p.Name]
	if l := a.ledgers[p.Name]; l != nil {
		n += l.byNS[q.claim.Service.Namespace]
	}
	if held, has := q.heldIn(f); has && a.alone(q, held.Addr) && a.units[held.Addr].owner == p.Name {
		n--
	}
	return n < p.NamespaceQuota.Max
}

func quotaText(p *pool, c *Claim) string {
	return fmt.Sprintf("namespace %s holds as many addresses of pool %s as its spec.namespaceQuota allows (%d): delete a Service, or raise the quota",
		c.Service.Namespace, p.Name, p.NamespaceQuota.Max)
}
