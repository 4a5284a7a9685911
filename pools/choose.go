package pools

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// plan is a Decision that is not carried out yet.
type plan struct {
	lease   []Address
	reason  Reason
	message string
	waits   waits
	drains  []string // pools whose address it keeps without being accepted
	misfit  bool     // it stays with sharers that it does not agree with
	// reallocated: the claim's Reallocate gives up an address that no pool accepts
	reallocated bool
}

// waits are the changes that may improve a decision: one in any of these pools.
type waits []wait

type wait struct {
	pool *pool
	// free is set if nothing in the pool but a free address of the family helps.
	free Family
}

// query is one claim being answered.
type query struct {
	claim *Claim
	self  *service
	held  []Address // at most one of each family
	// delta is the change of the namespace's count in a pool by the choices so far.
	delta map[string]int64
}

// choice is the address chosen for one family, or why there is none.
type choice struct {
	addr  Address
	ok    bool
	exact bool // the address was requested
	quota bool // the namespace's quota in a pool is used up
	// reallocated: replaces an address that no pool accepts
	reallocated bool

	drains  string
	reason  Reason
	message string
	waits   waits
}

// and adds the changes of another part of the decision.
func (w *waits) and(o waits) { *w = append(slices.Clip(*w), o...) }

// any adds that every change in these pools may help.
func (w *waits) any(o waits) {
	for _, x := range o {
		w.and(waits{{pool: x.pool}})
	}
}

// inVain reports whether only a free address helps, and the pools have none.
func (w waits) inVain() bool {
	return len(w) > 0 && !slices.ContainsFunc(w, func(x wait) bool { return x.free == 0 || x.pool.autoFree(x.free) != u128{} })
}

// differs reports whether the plan is another decision than the last one of the Service.
func (p *plan) differs(s *service) bool {
	return !slices.Equal(p.lease, s.lease) || !slices.Equal(p.drains, s.drains) ||
		p.reason != s.reason || p.misfit != s.misfit || p.message != s.message
}

func (q *query) heldIn(f Family) (Address, bool) {
	i := slices.IndexFunc(q.held, func(h Address) bool { return FamilyOf(h.Addr) == f })
	if i < 0 {
		return Address{}, false
	}
	return q.held[i], true
}

// heldIn returns the address of the family that counts as held. A status has several only if another writer changed it.
// Then the order is: an address of a pool in use, an address assigned from a pool, the first address.
func (a *Allocator) heldIn(lease []Address, f Family) (Address, bool) {
	rank := func(h Address) int {
		switch {
		case a.PoolOf(h.Addr) != "":
			return 0
		case h.Pool != "":
			return 1
		}
		return 2
	}
	best := -1
	for i, h := range lease {
		if FamilyOf(h.Addr) == f && (best < 0 || rank(h) < rank(lease[best])) {
			best = i
		}
	}
	if best < 0 {
		return Address{}, false
	}
	return lease[best], true
}

// held returns the addresses that count as held, at most one of each family.
func (a *Allocator) held(lease []Address) []Address {
	if len(lease) < 2 {
		return lease
	}
	var out []Address
	for _, f := range []Family{IPv4, IPv6} {
		if h, has := a.heldIn(lease, f); has {
			out = append(out, h)
		}
	}
	return out
}

// plan decides the Service's claim. It changes nothing but hints. The caller must have ended the expired cool-downs
// before.
func (a *Allocator) plan(s *service) plan {
	p := a.answer(s)
	for _, h := range p.lease {
		p.misfit = p.misfit || holdsAddr(s.lease, h.Addr) && !misfit(a.units[h.Addr], s, &s.claim).none()
	}
	return p
}

func (a *Allocator) answer(s *service) plan {
	c := &s.claim
	if reason, message := c.check(); reason != Allocated {
		return a.refused(s, choice{reason: reason, message: message})
	}
	fams := c.families()
	chosen := a.chooseAll(s, c, fams)
	if len(fams) == 2 && chosen[0].ok && !chosen[1].ok && chosen[1].quota {
		// The first family may have used up the namespace's quota in the only pool that has the second one. With
		// PreferDualStack a requested address takes precedence over another one.
		reversed := a.chooseAll(s, c, []Family{fams[1], fams[0]})
		requested := c.Policy == PreferDualStack && reversed[0].exact && !reversed[1].exact
		if reversed[0].ok && (reversed[1].ok || requested) {
			chosen = []choice{reversed[1], reversed[0]}
		} else {
			chosen[1].waits.and(reversed[0].waits)
			chosen[1].waits.and(reversed[1].waits)
		}
	}
	prefer := c.Policy == PreferDualStack
	one := prefer && slices.ContainsFunc(chosen, func(ch choice) bool { return ch.ok })
	for i, ch := range chosen {
		if ch.ok || one && !ch.exact {
			continue
		}
		if prefer && i == 0 && len(chosen) == 2 {
			ch.waits.and(chosen[1].waits) // either family may resolve it
		}
		return a.refused(s, ch)
	}
	return a.granted(chosen, c, s)
}

func (a *Allocator) chooseAll(s *service, c *Claim, fams []Family) []choice {
	q := &query{claim: c, self: s, held: a.held(s.lease)}
	out := make([]choice, len(fams))
	for i, f := range fams {
		out[i] = a.choose(q, f)
		a.count(q, f, out[i])
	}
	return out
}

// count updates the namespace's count after the choice.
func (a *Allocator) count(q *query, f Family, ch choice) {
	old, had := q.heldIn(f)
	if !a.quotas || !ch.ok || had && old.Addr == ch.addr.Addr {
		return
	}
	if q.delta == nil {
		q.delta = map[string]int64{}
	}
	if had && a.alone(q, old.Addr) {
		q.delta[a.units[old.Addr].poolName]--
	}
	if !a.heldByNamespace(q, ch.addr.Addr) {
		q.delta[ch.addr.Pool]++
	}
}

// refused keeps everything in place. A Service that requires two families and whose status lost both does not get only
// one of them back.
func (a *Allocator) refused(s *service, ch choice) plan {
	p := plan{lease: s.lease, reason: ch.reason, message: ch.message, waits: ch.waits}
	if s.claim.Policy == RequireDualStack && len(s.claim.families()) == 2 && len(s.lease) == 1 && s.restored {
		p.lease = nil
	}
	for _, h := range p.lease {
		a.keepDrains(&p, s, h)
	}
	return p
}

// keepOf keeps the held address of the family, if there is one.
func (a *Allocator) keepOf(p *plan, s *service, f Family) {
	if h, has := a.heldIn(s.lease, f); has {
		p.lease = append(p.lease, h)
		a.keepDrains(p, s, h)
	}
}

func (a *Allocator) keepDrains(p *plan, s *service, h Address) {
	if u := a.units[h.Addr]; !a.accepted(u, &s.claim) && !slices.Contains(p.drains, u.poolName) {
		p.drains = append(p.drains, u.poolName)
	}
}

// granted takes the chosen addresses. A family without a choice keeps its address, or waits.
func (a *Allocator) granted(chosen []choice, c *Claim, s *service) plan {
	p := plan{reason: Allocated}
	for i, ch := range chosen {
		p.waits.and(ch.waits)
		reason := ch.reason
		if !ch.ok && reason != SharingRefused {
			reason = SecondFamilyPending
		}
		if weight(reason) > weight(p.reason) {
			p.reason, p.message = reason, ch.message
		}
		if !ch.ok {
			a.keepOf(&p, s, c.families()[i])
			continue
		}
		p.lease = append(p.lease, ch.addr)
		p.reallocated = p.reallocated || ch.reallocated
		if ch.drains != "" && !slices.Contains(p.drains, ch.drains) {
			p.drains = append(p.drains, ch.drains)
		}
	}
	return p
}

// weight orders the reasons of two families: the decision has the heavier one, or the first of equal ones.
func weight(r Reason) int {
	return slices.Index([]Reason{Allocated, SecondFamilyPending, Draining, SharingRefused}, r)
}

// choose picks the address of one family: the requested address, else the held one, else one of the pools in their
// order.
func (a *Allocator) choose(q *query, f Family) choice {
	if x := q.claim.requested(f); x.IsValid() {
		ch := a.chooseExact(q, x)
		ch.exact = true
		if sp, ok := a.find(x); ok && !ch.ok {
			ch.waits = waits{{pool: sp.pool}}
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
	keep.waits.any(ch.waits)
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

// candidates are the pools that auto-assign the family to the claim, in order.
func (a *Allocator) candidates(q *query, f Family) []*pool {
	var out []*pool
	for _, p := range a.bound {
		if p.free[slot(f)] != nil && p.accepts(a, q.claim) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return a.open
	}
	return append(out, a.open...)
}

// pick returns the first available address of the pools. Order in each pool: an address in cool-down that the Service
// freed itself, an address to share, the lowest free address.
func (a *Allocator) pick(q *query, f Family, from []*pool) choice {
	var full, quota []string
	var tried []*pool
	var last *pool
	for _, p := range from {
		if p.free[slot(f)] == nil {
			continue
		}
		tried = append(tried, p)
		if ch := a.pickFrom(q, f, p); ch.ok {
			return ch
		} else if ch.reason == QuotaReached {
			quota = append(quota, p.Name)
			last = p
		} else {
			full = append(full, p.Name)
		}
	}
	if len(full)+len(quota) == 0 {
		return choice{reason: NoPool, message: fmt.Sprintf("no pool auto-assigns %s addresses to %s: add a pool with "+
			"autoAssign true that accepts it, or name a pool in annotation ironlb.io/ip-pool", f, q.claim.Service)}
	}
	ch := choice{reason: PoolExhausted, quota: len(quota) > 0}
	for _, p := range tried {
		ch.waits = append(ch.waits, wait{pool: p})
		if q.claim.SharingKey == "" && !ch.quota {
			ch.waits[len(ch.waits)-1].free = f
		}
	}
	cause := "no address is free in " + poolList(full) + ": add addresses to spec.addresses, or delete a Service"
	if len(full) == 0 {
		ch.reason, cause = QuotaReached, quotaText(last, q.claim)
	}
	if u, found := a.refusedShare(q, f, from); u != nil {
		ch.reason, cause = SharingRefused, found.why+", and "+cause
	}
	ch.message = fmt.Sprintf("%s gets no %s address: %s", q.claim.Service, f, cause)
	return ch
}

func poolList(names []string) string {
	if len(names) == 1 {
		return "pool " + names[0]
	}
	return "pools " + strings.Join(names, ", ")
}

func (a *Allocator) pickFrom(q *query, f Family, p *pool) choice {
	if x := a.coolingDownBy(q.claim.Service, p, f); x.IsValid() && a.quotaAllows(q, p, f, x) {
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
	return choice{addr: Address{x, p.Name}, ok: true, reason: Allocated}
}

// coolingDownBy returns the first address of the pool, in listed order, that is in cool-down and that the Service
// freed.
func (a *Allocator) coolingDownBy(k ServiceKey, p *pool, f Family) netip.Addr {
	var best span
	var found netip.Addr
	for _, x := range a.cooling.by[k] {
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

// busy reports whether auto-assignment must skip the address.
func (a *Allocator) busy(p *pool, x netip.Addr) bool {
	if _, used := a.units[x]; used {
		return true
	}
	_, cooling := a.cooling.at[x]
	return cooling || !a.assigns(p, x)
}

// quotaAllows reports whether the namespace may hold one more address x of the pool, in place of what the Service holds
// of the family. An address that the namespace already holds costs nothing.
func (a *Allocator) quotaAllows(q *query, p *pool, f Family, x netip.Addr) bool {
	if !p.NamespaceQuota.Set || x.IsValid() && (a.heldByNamespace(q, x) || holdsAddr(q.self.releasing, x)) {
		return true
	}
	n := q.delta[p.Name]
	if l := a.ledgers[p.Name]; l != nil {
		n += l.byNS[q.claim.Service.Namespace]
	}
	for _, h := range q.self.lease { // what is freed if the Service gets another one
		other := FamilyOf(h.Addr) != f && slices.Contains(q.held, h)
		if !other && a.alone(q, h.Addr) && a.units[h.Addr].poolName == p.Name {
			n--
		}
	}
	return n < p.NamespaceQuota.Max
}

func quotaText(p *pool, c *Claim) string {
	return fmt.Sprintf("namespace %s holds as many addresses of pool %s as its spec.namespaceQuota allows (%d): delete a Service, or raise the quota",
		c.Service.Namespace, p.Name, p.NamespaceQuota.Max)
}
