package pools

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

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
	ch := choice{reason: PoolExhausted, quota: len(quota) > 0, waits: waits{pools: tried}}
	if q.claim.SharingKey == "" && !ch.quota {
		ch.waits.free = f
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
