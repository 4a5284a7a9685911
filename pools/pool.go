package pools

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"
)

// Pool is a set of addresses and the rules for assigning them. The Allocator keeps it: its slices must not change
// afterwards.
type Pool struct {
	Name string
	// Created selects which of two overlapping pools is used: the older one, then the first by name.
	Created time.Time
	// Ranges in listed order, without overlaps.
	Ranges []Range
	// AutoAssign false keeps the pool for Services that request it, or for one of its addresses.
	AutoAssign bool
	// AvoidBuggyIPs excludes IPv4 addresses that end in .0 or .255.
	AvoidBuggyIPs bool
	// Allocation limits which Services may use the pool, and ranks it before the open ones.
	Allocation Allocation
	// SharingNamespaces may share addresses of this pool with one another.
	SharingNamespaces []string
	// ReuseAfter is the cool-down: how long a freed address is withheld before auto-assignment gives it to another
	// Service.
	ReuseAfter time.Duration
	// NamespaceQuota is the maximum number of addresses that one namespace may hold from this pool.
	NamespaceQuota Limit
	// Unreadable: the pool cannot be parsed, and no last known content exists. It assigns nothing, and addresses held
	// from it are kept. Its ranges and rules do not count.
	Unreadable bool
}

// Limit is a number that may be absent.
type Limit struct {
	Set bool
	Max int64
}

// Allocation is spec.serviceAllocation of a pool. The zero value is absent: every Service may use the pool.
type Allocation struct {
	// Set is true if the field is present, even when empty.
	Set bool
	// Priority: lower first, 0 last.
	Priority int32
	// Namespaces and NamespaceSelectors: a namespace in either list matches. Both empty: every namespace.
	Namespaces         []string
	NamespaceSelectors []Selector
	// ServiceSelectors: any of them matches. Empty: every Service.
	ServiceSelectors []Selector
}

// Operator relates a label to values.
type Operator string

// The operators of a Kubernetes label selector.
const (
	In           Operator = "In"
	NotIn        Operator = "NotIn"
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
)

// Selector is a Kubernetes label selector: every requirement holds. matchLabels is In with one value. An empty one
// matches everything.
type Selector []Requirement

// Requirement is one condition on a label.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string
}

// ReturnRoute is a router through which the answers of a pool may leave a node.
type ReturnRoute struct {
	Gateway netip.Addr
	// Interface towards the gateway; empty for any with the gateway's network.
	Interface string
}

// Index maps an address to its pool. The zero value has none.
type Index struct{ spans []span }

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

// accepts reports whether a Service with these labels, in a namespace with nsLabels, may use the pool. known is false
// for a namespace that was never set; no selector matches it.
func (al *Allocation) accepts(c *Claim, nsLabels map[string]string, known bool) bool {
	if len(al.Namespaces)+len(al.NamespaceSelectors) > 0 &&
		!slices.Contains(al.Namespaces, c.Service.Namespace) && !(known && anyMatch(al.NamespaceSelectors, nsLabels)) {
		return false
	}
	return len(al.ServiceSelectors) == 0 || anyMatch(al.ServiceSelectors, c.Labels)
}

func anyMatch(selectors []Selector, labels map[string]string) bool {
	return slices.ContainsFunc(selectors, func(s Selector) bool { return s.Matches(labels) })
}

// Matches reports whether the labels meet every requirement. An unknown operator matches nothing.
func (s Selector) Matches(labels map[string]string) bool {
	for _, r := range s {
		v, has := labels[r.Key]
		ok := false
		switch r.Operator {
		case In:
			ok = has && slices.Contains(r.Values, v)
		case NotIn:
			ok = !has || !slices.Contains(r.Values, v)
		case Exists:
			ok = has
		case DoesNotExist:
			ok = !has
		}
		if !ok {
			return false
		}
	}
	return true
}

// SetPools replaces the full set of pools. No held address is lost: see Draining.
func (a *Allocator) SetPools(all []Pool) {
	next, _ := arrange(all)
	changed := map[string]bool{}
	for name, p := range next {
		old := a.pools[name]
		if old != nil && old.state == p.state && old.overlaps == p.overlaps && reflect.DeepEqual(old.Pool, p.Pool) {
			next[name] = old
			continue
		}
		changed[name] = true
	}
	for name := range a.pools {
		if next[name] == nil {
			changed[name] = true
		}
	}
	if len(changed) == 0 {
		return
	}
	a.pools = next
	a.order()
	a.withholdIn(changed)
	a.reindexUnits(changed)
	a.recountCoolDowns(changed)
	for name := range changed {
		a.dirty[name] = struct{}{}
		a.reevaluateHolders(name)
		a.pruneIfPresent(name)
	}
	for _, s := range a.unmet {
		a.mark(s)
	}
}

// arrange selects the pools in use and their ranges. Of two that overlap, the older is used, then the first by name.
func arrange(all []Pool) (map[string]*pool, []span) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(p, o Pool) int { return cmp.Or(p.Created.Compare(o.Created), cmp.Compare(p.Name, o.Name)) })
	out := make(map[string]*pool, len(all))
	var used []span
	for i := range sorted {
		p := newPool(sorted[i])
		out[p.Name] = p
		if p.Unreadable {
			p.Ranges, p.state = nil, PoolNotRead
			continue
		}
		if _, _, bad := firstOverlap(p.Ranges); bad {
			p.state = PoolInvalid
			continue
		}
		if o := overlapped(used, p); o != "" {
			p.state, p.overlaps = PoolOverlaps, o
			continue
		}
		for _, r := range p.Ranges {
			at, _ := slices.BinarySearchFunc(used, r, func(s span, r Range) int { return s.First.Compare(r.First) })
			used = slices.Insert(used, at, span{Range: r, pool: p})
		}
	}
	return out, used
}

// overlapped returns the name of the pool that the new one overlaps, first in the new pool's order. used is sorted and
// disjoint.
func overlapped(used []span, p *pool) string {
	for _, r := range p.Ranges {
		i, _ := slices.BinarySearchFunc(used, r, func(s span, r Range) int { return s.First.Compare(r.First) })
		for _, j := range []int{i - 1, i} {
			if j >= 0 && j < len(used) && used[j].Overlaps(r) {
				return used[j].pool.Name
			}
		}
	}
	return ""
}

func newPool(in Pool) *pool {
	p := &pool{Pool: in, state: PoolReady}
	p.Ranges = slices.Clone(in.Ranges)
	for f, fam := range []Family{IPv4, IPv6} {
		var ranges []Range
		for _, r := range p.Ranges {
			if r.Family() == fam {
				ranges = append(ranges, r)
				p.capacity[f] = p.capacity[f].add(p.offered(r))
			}
		}
		if len(ranges) > 0 {
			p.free[f] = newFreeIndex(ranges)
		}
	}
	return p
}

// offered counts the addresses of the range that the pool assigns.
func (p *pool) offered(r Range) u128 {
	n := r.size()
	if !p.AvoidBuggyIPs || r.Family() != IPv4 {
		return n
	}
	first, last := fromAddr(r.First).lo&0xffffffff, fromAddr(r.Last).lo&0xffffffff
	upTo := func(x uint64) uint64 { // addresses below x that end in .0 or .255
		return (x+255)/256 + x/256
	}
	return n.sub(u128{0, upTo(last+1) - upTo(first)})
}

// order builds the indexes of the pools: by address, and in the order of allocation.
func (a *Allocator) order() {
	a.spans, a.open, a.bound, a.quotas = nil, nil, nil, false
	for _, p := range a.pools {
		a.quotas = a.quotas || p.NamespaceQuota.Set
		if p.state != PoolReady {
			continue
		}
		var at [2]int
		for _, r := range p.Ranges {
			i := slot(r.Family())
			a.spans = append(a.spans, span{Range: r, pool: p, at: at[i]})
			at[i]++
		}
		switch {
		case p.AutoAssign && p.Allocation.Set:
			a.bound = append(a.bound, p)
		case p.AutoAssign:
			a.open = append(a.open, p)
		}
	}
	slices.SortFunc(a.spans, func(s, o span) int { return s.First.Compare(o.First) })
	slices.SortFunc(a.open, func(p, o *pool) int { return cmp.Compare(p.Name, o.Name) })
	slices.SortFunc(a.bound, func(p, o *pool) int {
		return cmp.Or(cmp.Compare(uint32(p.Allocation.Priority-1), uint32(o.Allocation.Priority-1)), cmp.Compare(p.Name, o.Name))
	})
}

// reevaluateHolders marks every holder of an address of the pool for re-evaluation.
func (a *Allocator) reevaluateHolders(name string) {
	l := a.ledgers[name]
	if l == nil {
		return
	}
	for _, u := range l.units {
		for _, h := range u.holders {
			a.mark(h)
		}
	}
	for key := range l.draining {
		a.mark(a.services[key])
	}
}

func (a *Allocator) pruneIfPresent(name string) {
	if a.ledgers[name] != nil {
		a.pruneLedger(name)
	}
}

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

// SetNamespace sets the labels of a namespace, for the pools' namespace selectors. It reports whether they changed.
func (a *Allocator) SetNamespace(name string, labels map[string]string) bool {
	return a.setNamespace(name, labels, true)
}

// DeleteNamespace removes a namespace. It reports whether there was one.
func (a *Allocator) DeleteNamespace(name string) bool { return a.setNamespace(name, nil, false) }

func (a *Allocator) setNamespace(name string, labels map[string]string, known bool) bool {
	old, had := a.nsLabel[name]
	if had == known && maps.Equal(old, labels) {
		return false
	}
	if known {
		a.nsLabel[name] = labels
	} else {
		delete(a.nsLabel, name)
	}
	for _, s := range a.inNS[name] {
		a.mark(s)
		for _, h := range s.lease { // a holder that no longer drains lets others share
			a.loosen(a.units[h.Addr].pool)
		}
	}
	return true
}

// NewIndex returns the Index of these pools. Only names, ages and ranges count. If two pools overlap, the address
// belongs to the same pool as in the Allocator.
func NewIndex(all []Pool) Index {
	_, used := arrange(all)
	return Index{used}
}

// PoolOf returns the name of the pool that has the address, empty for none.
func (x Index) PoolOf(addr netip.Addr) string {
	if sp, ok := findSpan(x.spans, addr); ok {
		return sp.pool.Name
	}
	return ""
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
