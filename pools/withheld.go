package pools

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// WithheldAddress is an address of a pool that something else has. No Service gets it: nodes, routers or clients would
// treat it as that of the other.
type WithheldAddress struct {
	Addr netip.Addr
	// By is what has the address, in the order of the rules.
	By []Refusal
	// Holders are the Services that had it before. They keep it.
	Holders []ServiceKey
}

// Withhold sets the addresses of what a refusal names, none if it is gone, and reports whether they changed. No Service
// gets one of them, except the one that the refusal names. A Service that already has one keeps it: see Draining. An
// address that a Service of another controller gave up cools down.
func (a *Allocator) Withhold(r Refusal, addrs []netip.Addr, now time.Time) bool {
	next := slices.Clone(addrs)
	slices.SortFunc(next, netip.Addr.Compare)
	next = slices.Compact(next)
	old := a.of[r]
	if slices.Equal(old, next) {
		return false
	}
	if len(next) > 0 {
		a.of[r] = next
	} else {
		delete(a.of, r)
	}
	for _, x := range next {
		if _, had := slices.BinarySearchFunc(old, x, netip.Addr.Compare); !had {
			a.otherHas(x, r)
		}
	}
	for _, x := range old {
		if _, has := slices.BinarySearchFunc(next, x, netip.Addr.Compare); !has {
			a.otherLacks(x, r, now)
		}
	}
	return true
}

// otherHas takes the address away from its pool, and records what has it.
func (a *Allocator) otherHas(x netip.Addr, r Refusal) {
	all := a.others[x]
	i, _ := slices.BinarySearchFunc(all, r, Refusal.compare)
	a.others[x] = slices.Insert(all, i, r)
	a.markPool(x)
	if len(all) > 0 || a.hosts[x] != "" {
		a.reevaluateHolder(x)
		return
	}
	a.withhold(x)
}

// markPool marks the pool of the address: its status lists what has its addresses.
func (a *Allocator) markPool(x netip.Addr) {
	if sp, ok := a.find(x); ok {
		a.dirty[sp.pool.Name] = struct{}{}
	}
}

// withhold takes the address away from its pool.
func (a *Allocator) withhold(x netip.Addr) {
	a.reevaluateHolder(x)
	sp, ok := a.find(x)
	if !ok || !sp.pool.offers(x) {
		return
	}
	a.dirty[sp.pool.Name] = struct{}{}
	i := slot(FamilyOf(x))
	if a.units[x] != nil {
		sp.pool.used[i]--
	} else if _, cooling := a.cooling.at[x]; cooling {
		a.cooling.end(x)
		sp.pool.coolingDown[i]--
	}
	sp.pool.withhold(x)
}

// otherLacks gives the address back to its pool if nothing else has it.
func (a *Allocator) otherLacks(x netip.Addr, r Refusal, now time.Time) {
	a.others[x] = slices.DeleteFunc(a.others[x], func(o Refusal) bool { return o == r })
	a.markPool(x)
	if len(a.others[x]) > 0 {
		a.reevaluateHolder(x)
		if sp, ok := a.find(x); ok { // what is left may be of the Service that requests it
			a.loosen(sp.pool)
		}
		return
	}
	delete(a.others, x)
	if a.hosts[x] != "" {
		a.reevaluateHolder(x)
		sp, _ := a.find(x)
		a.loosen(sp.pool) // a Service that requests it may get it
		return
	}
	a.endWithholding(x, r, now)
}

// endWithholding gives an address back to its pool when nothing else has it any more; last is what had it until now.
func (a *Allocator) endWithholding(x netip.Addr, last Refusal, now time.Time) {
	a.reevaluateHolder(x)
	sp, ok := a.find(x)
	a.loosen(sp.pool) // a Service may get it, or share it with a holder that no longer drains
	if !ok || !sp.pool.offers(x) {
		return
	}
	a.dirty[sp.pool.Name] = struct{}{}
	i := slot(FamilyOf(x))
	delete(sp.pool.withheldAddrs, x)
	sp.pool.withheld[i]--
	if a.units[x] != nil {
		sp.pool.used[i]++
		return
	}
	if last.Rule != RuleService {
		a.returnToFree(sp.pool, sp.at, x)
		return
	}
	namespace, name, _ := strings.Cut(last.Of, "/")
	a.startCoolDown(sp.pool, sp.at, x, ServiceKey{namespace, name}, now)
}

// withhold counts an address that the pool would assign as withheld, because something else has it.
func (p *pool) withhold(x netip.Addr) {
	if p.withheldAddrs == nil {
		p.withheldAddrs = map[netip.Addr]struct{}{}
	}
	p.withheldAddrs[x] = struct{}{}
	p.withheld[slot(FamilyOf(x))]++
}

// withholdIn counts the withheld addresses of the pools that changed. The counters of these pools start at zero.
func (a *Allocator) withholdIn(changed map[string]bool) {
	all := map[netip.Addr]struct{}{}
	for x := range a.others {
		all[x] = struct{}{}
	}
	for x := range a.hosts {
		all[x] = struct{}{}
	}
	for x := range all {
		if sp, ok := a.find(x); ok && changed[sp.pool.Name] && sp.pool.offers(x) {
			sp.pool.withhold(x)
		}
	}
}

func (a *Allocator) reevaluateHolder(x netip.Addr) {
	if u := a.units[x]; u != nil {
		for _, h := range u.holders {
			a.mark(h)
		}
	}
}

// withheldFrom returns the first refusal of the address that does not name the claiming Service.
func (a *Allocator) withheldFrom(c *Claim, x netip.Addr) (Refusal, bool) {
	for _, r := range a.others[x] {
		if r.Rule != RuleService || r.Of != c.Service.String() {
			return r, true
		}
	}
	return Refusal{}, false
}

// drainedBy returns the refusal for which a holder gives the address up when it can. Another Service is none: a tenant
// can name any address in spec.externalIPs.
func (a *Allocator) drainedBy(x netip.Addr) (Refusal, bool) {
	for _, r := range a.others[x] {
		if r.Rule != RuleService {
			return r, true
		}
	}
	return Refusal{}, false
}

// assigns reports whether the pool, which lists the address, assigns it at all.
func (a *Allocator) assigns(p *pool, x netip.Addr) bool { return p.offers(x) && !a.usedElsewhere(x) }

// withheldInPool returns the withheld addresses of the pool, in order. It leaves out what its holders alone show: a
// Service that is being deleted shows its address until its object is gone.
func (a *Allocator) withheldInPool(p *pool) []WithheldAddress {
	var out []WithheldAddress
	for x := range p.withheldAddrs {
		holders := a.Holders(x)
		by := slices.DeleteFunc(slices.Clone(a.others[x]), func(r Refusal) bool {
			return r.Rule == RuleService && slices.ContainsFunc(holders, func(k ServiceKey) bool { return k.String() == r.Of })
		})
		if len(by) > 0 {
			out = append(out, WithheldAddress{Addr: x, By: by, Holders: holders})
		}
	}
	slices.SortFunc(out, func(n, o WithheldAddress) int { return n.Addr.Compare(o.Addr) })
	return out
}

// SetHosts replaces the addresses of foreign hosts, with the name of each host, and reports whether they changed. A
// Service gets such an address only if it requests it. A Service that has one and did not request it gets another one,
// if there is any.
func (a *Allocator) SetHosts(hosts map[netip.Addr]string) bool {
	if maps.Equal(a.hosts, hosts) {
		return false
	}
	before := a.hosts
	a.hosts = maps.Clone(hosts)
	for _, x := range slices.SortedFunc(maps.Keys(hosts), netip.Addr.Compare) {
		switch {
		case before[x] != "":
		case len(a.others[x]) > 0:
			a.reevaluateHolder(x)
		default:
			a.withhold(x)
		}
	}
	for _, x := range slices.SortedFunc(maps.Keys(before), netip.Addr.Compare) {
		switch {
		case hosts[x] != "":
		case len(a.others[x]) > 0:
			a.reevaluateHolder(x)
		default:
			a.endWithholding(x, Refusal{}, time.Time{})
		}
	}
	return true
}

// usedElsewhere reports whether something else, or a foreign host, has the address.
func (a *Allocator) usedElsewhere(x netip.Addr) bool {
	return len(a.others[x]) > 0 || a.hosts[x] != ""
}

// hostAgainst returns the foreign host that blocks the address for the claim, empty for none. A Service keeps an
// address that it requests.
func (a *Allocator) hostAgainst(c *Claim, x netip.Addr) string {
	if c.requested(FamilyOf(x)) == x {
		return ""
	}
	return a.hosts[x]
}
