package pools

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Allocator holds the pools and the addresses in use. Its decisions depend on the pools, the namespaces, the held
// addresses and the claim, not on the order of earlier calls.
type Allocator struct {
	pools   map[string]*pool // every pool, usable or not
	spans   []span           // ranges of the pools in use, by first address
	open    []*pool          // pools in use that auto-assign to every Service, by name
	bound   []*pool          // pools in use that auto-assign by serviceAllocation, by priority, then name
	nsLabel map[string]map[string]string
	of      map[Refusal][]netip.Addr // addresses that something else has, sorted
	others  map[netip.Addr][]Refusal // what has the address, sorted
	// hosts maps the addresses of foreign hosts to the name of the host.
	hosts  map[netip.Addr]string
	quotas bool // some pool has a quota

	services    map[ServiceKey]*service
	inNS        map[string]map[ServiceKey]*service
	units       map[netip.Addr]*unit
	withoutPool map[netip.Addr]*unit // in use, but in no pool in use
	ledgers     map[string]*ledger   // by pool name, also of deleted pools while their addresses are held
	byKey       map[string]*keyGroup
	cooling     coolingAddresses
	dirty       map[string]struct{} // pools whose status changed

	unmet    []*service // Services whose claim is not met in full, the oldest first
	marked   []*service // to be evaluated again: something about them or their addresses changed
	loosened bool       // some pool is
}

// New returns an Allocator without pools.
func New() *Allocator {
	return &Allocator{
		pools:       map[string]*pool{},
		nsLabel:     map[string]map[string]string{},
		of:          map[Refusal][]netip.Addr{},
		others:      map[netip.Addr][]Refusal{},
		services:    map[ServiceKey]*service{},
		inNS:        map[string]map[ServiceKey]*service{},
		units:       map[netip.Addr]*unit{},
		withoutPool: map[netip.Addr]*unit{},
		ledgers:     map[string]*ledger{},
		byKey:       map[string]*keyGroup{},
		cooling:     newCoolingAddresses(),
		dirty:       map[string]struct{}{},
	}
}

// Assign decides the claim and records the decision. If the claim cannot be met, the Service keeps what it holds. What
// it gives up it keeps until Written: a crash between two writes to the API server must not leave one address in the
// status of two Services.
func (a *Allocator) Assign(c Claim, now time.Time) Decision {
	a.expire(now)
	s := a.services[c.Service]
	if s == nil {
		s = &service{claim: c}
		a.services[c.Service] = s
		a.byNamespace(c.Service.Namespace)[c.Service] = s
		a.takeRecorded(s, &c)
	} else {
		a.update(s, &c)
	}
	p := a.plan(s)
	moves := a.moves(s, p)
	a.commit(s, p)
	d := Decision{
		Lease: slices.Clone(s.lease), Changed: !slices.Equal(s.recorded, s.lease), Moves: moves,
		Reallocated: s.reallocated && len(s.drains) == 0, Reason: p.reason, Message: p.message,
	}
	for _, h := range s.releasing {
		d.Freed = append(d.Freed, h.Addr)
	}
	return d
}

// Reevaluate decides again about the Services that the changes since the last call concern, by their last claims, the
// oldest first. It returns those whose decision changed: their Assign returns it. Call it after every change and after
// every Assign.
func (a *Allocator) Reevaluate(now time.Time) []ServiceKey {
	a.expire(now)
	var keys []ServiceKey
	for _, s := range a.concerned() {
		inVain := !s.marked && s.waits.inVain()
		s.marked = false
		if inVain || a.services[s.claim.Service] != s {
			continue
		}
		p := a.plan(s)
		if s.waits = p.waits; !p.differs(s) {
			continue
		}
		a.commit(s, p)
		keys = append(keys, s.claim.Service)
	}
	return keys
}

// concerned returns and forgets the Services to evaluate again, the oldest first.
func (a *Allocator) concerned() []*service {
	all := a.marked
	if a.loosened {
		for _, s := range a.unmet {
			if !s.marked && slices.ContainsFunc(s.waits, func(w wait) bool { return w.pool.loosened }) {
				all = append(all, s)
			}
		}
		for _, p := range a.pools {
			p.loosened = false
		}
	}
	if len(a.marked) > 0 { // else they are sorted
		slices.SortFunc(all, older)
	}
	a.marked, a.loosened = nil, false
	return all
}

// mark has the Service evaluated again.
func (a *Allocator) mark(s *service) {
	if !s.marked {
		s.marked = true
		a.marked = append(a.marked, s)
	}
}

// loosen has the Services evaluated again that wait for something in the pool, if there is one.
func (a *Allocator) loosen(p *pool) {
	if p != nil {
		p.loosened, a.loosened = true, true
	}
}

// older orders Services that wait.
func older(s, o *service) int {
	return cmp.Or(s.claim.Created.Compare(o.claim.Created), s.claim.Service.Compare(o.claim.Service))
}

// setUnmet records whether the claim of the Service is not met in full.
func (a *Allocator) setUnmet(s *service, unmet bool) {
	i, has := slices.BinarySearchFunc(a.unmet, s, older)
	switch {
	case unmet && !has:
		a.unmet = slices.Insert(a.unmet, i, s)
	case !unmet && has:
		a.unmet = slices.Delete(a.unmet, i, i+1)
	}
}

// update replaces the claim of an existing Service. Services that wait for its addresses may be able to share them now.
func (a *Allocator) update(s *service, c *Claim) {
	if !s.claim.Created.Equal(c.Created) { // its place among those that wait
		a.setUnmet(s, false)
	}
	if s.claim.sharesAs(c) {
		s.claim = *c
		return
	}
	on := append(slices.Clip(s.lease), s.releasing...)
	for _, h := range on {
		a.unindex(a.units[h.Addr])
	}
	s.claim = *c
	for _, h := range on {
		a.index(a.units[h.Addr])
		a.loosen(a.units[h.Addr].pool)
	}
}

// commit carries out the plan. The addresses that it gives up are freed when the status is written.
func (a *Allocator) commit(s *service, p plan) {
	for _, w := range p.lease {
		if holdsAddr(s.releasing, w.Addr) {
			s.releasing = slices.DeleteFunc(s.releasing, func(h Address) bool { return h.Addr == w.Addr })
		} else if !holdsAddr(s.lease, w.Addr) {
			a.take(s, w)
		}
	}
	for _, h := range s.lease {
		if !holdsAddr(p.lease, h.Addr) {
			s.releasing = append(s.releasing, h)
		}
	}
	a.reevaluateSharers(s, p.misfit != s.misfit)
	s.lease, s.reason, s.message, s.misfit = slices.Clone(p.lease), p.reason, p.message, p.misfit
	s.waits, s.reallocated = p.waits, s.claim.Reallocate && (s.reallocated || p.reallocated)
	a.setDrains(s, p.drains)
	a.setUnmet(s, p.reason != Allocated)
}

// reevaluateSharers marks for re-evaluation the sharers of the Service's addresses whose outcome may change: misfits
// and draining Services, or all of them when the Service becomes a misfit or ceases to be one.
func (a *Allocator) reevaluateSharers(s *service, all bool) {
	for _, h := range s.lease {
		for _, o := range a.units[h.Addr].holders {
			if o != s && (all || o.misfit || len(o.drains) > 0) {
				a.mark(o)
			}
		}
	}
}

// finishRelease takes the Service off the addresses that it gave up. It returns those without a remaining holder.
func (a *Allocator) finishRelease(s *service, now time.Time) []netip.Addr {
	var freed []netip.Addr
	for _, h := range s.releasing {
		if a.drop(s, h.Addr, now) {
			freed = append(freed, h.Addr)
		}
	}
	s.releasing = nil
	return freed
}

// Written records that the Service's status shows its lease and nothing else. It frees and returns the addresses that
// the Service gave up.
func (a *Allocator) Written(key ServiceKey, now time.Time) []netip.Addr {
	a.expire(now)
	s := a.services[key]
	if s == nil {
		return nil
	}
	s.recorded, s.restored = slices.Clone(s.lease), false
	if s.reallocated && len(s.drains) == 0 { // the request is carried out
		s.reallocated, s.claim.Reallocate = false, false
	}
	return a.finishRelease(s, now)
}

func holdsAddr(lease []Address, x netip.Addr) bool {
	return slices.ContainsFunc(lease, func(h Address) bool { return h.Addr == x })
}

func (a *Allocator) take(s *service, w Address) {
	if u := a.units[w.Addr]; u != nil {
		a.unindex(u)
	}
	a.hold(s, w)
	a.recountPool(a.units[w.Addr])
	a.index(a.units[w.Addr])
}

func (a *Allocator) drop(s *service, addr netip.Addr, now time.Time) bool {
	u := a.units[addr]
	a.unindex(u)
	if a.unhold(s, addr, now) {
		return true
	}
	a.recountPool(u)
	a.index(u)
	return false
}

// setDrains updates the pools' lists of draining Services.
func (a *Allocator) setDrains(s *service, drains []string) {
	if slices.Equal(s.drains, drains) {
		return
	}
	for _, name := range s.drains {
		delete(a.ledger(name).draining, s.claim.Service)
		a.pruneLedger(name)
		a.dirty[name] = struct{}{}
	}
	for _, name := range drains {
		a.ledger(name).draining[s.claim.Service] = struct{}{}
		a.dirty[name] = struct{}{}
	}
	s.drains = slices.Clone(drains)
}

// Release frees everything that the Service holds or waits for. It returns the addresses without a remaining holder.
func (a *Allocator) Release(key ServiceKey, now time.Time) []netip.Addr {
	a.expire(now)
	s := a.services[key]
	if s == nil {
		return nil
	}
	a.reevaluateSharers(s, s.misfit)
	s.releasing, s.lease = append(s.releasing, s.lease...), nil
	freed := a.finishRelease(s, now)
	a.setDrains(s, nil)
	delete(a.services, key)
	a.setUnmet(s, false)
	delete(a.inNS[key.Namespace], key)
	if len(a.inNS[key.Namespace]) == 0 {
		delete(a.inNS, key.Namespace)
	}
	return freed
}

func (a *Allocator) byNamespace(ns string) map[ServiceKey]*service {
	m := a.inNS[ns]
	if m == nil {
		m = map[ServiceKey]*service{}
		a.inNS[ns] = m
	}
	return m
}

// takeRecorded puts a new Service on the addresses that its status records, except those held by a Service that it does
// not share with.
func (a *Allocator) takeRecorded(s *service, c *Claim) {
	s.recorded = slices.Clone(c.Held)
	for _, h := range c.Held {
		if u := a.units[h.Addr]; !holdsAddr(s.lease, h.Addr) && (u == nil || clashOf(u, s, c).none()) {
			s.lease = append(s.lease, h)
			a.take(s, h)
		}
	}
	a.restoreLost(s, c)
}

// restoreLost returns to a Service the addresses that its status lost. It does so per family, if the status shows no
// address of a pool in that family. The pool must still assign the address to the Service, and no other Service may
// hold it without sharing.
func (a *Allocator) restoreLost(s *service, c *Claim) {
	for _, h := range c.Lost {
		shown, has := a.heldIn(s.lease, FamilyOf(h.Addr))
		if has && a.PoolOf(shown.Addr) != "" || !a.restorable(s, c, h) {
			continue
		}
		s.restored = len(c.Held) == 0
		s.lease = append(s.lease, h)
		a.take(s, h)
	}
}

func (a *Allocator) restorable(s *service, c *Claim, h Address) bool {
	sp, ok := a.find(h.Addr)
	if _, withheld := a.withheldFrom(c, h.Addr); !ok || withheld || a.hosts[h.Addr] != "" || !sp.pool.offers(h.Addr) || !sp.pool.accepts(a, c) {
		return false
	}
	u := a.units[h.Addr]
	return u == nil || a.joinable(u, s, c).none()
}

// Adopt records the addresses in Held of each claim and assigns nothing. Call it with all Services before the first
// Assign after a start. If Services on one address do not request to share it, the older one (then the first by name)
// stays. The others are returned: each moves at its next Assign, as soon as another address is available for it. A
// Service gets back the addresses that its status lost (Lost), unless another Service holds them.
func (a *Allocator) Adopt(claims []Claim) []ServiceKey {
	sorted := make([]*Claim, 0, len(claims))
	for i := range claims {
		if c := &claims[i]; len(c.Held)+len(c.Lost) > 0 && a.services[c.Service] == nil {
			sorted = append(sorted, c)
		}
	}
	slices.SortFunc(sorted, func(c, o *Claim) int {
		return cmp.Or(c.Created.Compare(o.Created), c.Service.Compare(o.Service))
	})
	var twice []ServiceKey
	for _, c := range sorted {
		s := &service{claim: *c, reason: Allocated, recorded: slices.Clone(c.Held)}
		a.services[c.Service] = s
		a.byNamespace(c.Service.Namespace)[c.Service] = s
		apart := false
		for _, h := range c.Held {
			if holdsAddr(s.lease, h.Addr) {
				continue
			}
			s.lease = append(s.lease, h)
			a.take(s, h)
			found := misfit(a.units[h.Addr], s, c)
			s.misfit, apart = s.misfit || !found.none(), apart || found.apart
		}
		if apart {
			twice = append(twice, c.Service)
		}
	}
	for _, c := range sorted { // after all recorded addresses are in place
		a.restoreLost(a.services[c.Service], c)
	}
	return twice
}

// Lease returns what the Service holds.
func (a *Allocator) Lease(key ServiceKey) []Address {
	if s := a.services[key]; s != nil {
		return slices.Clone(s.lease)
	}
	return nil
}

// Reason returns the outcome of the last decision about the Service, and its message.
func (a *Allocator) Reason(key ServiceKey) (Reason, string) {
	if s := a.services[key]; s != nil {
		return s.reason, s.message
	}
	return "", ""
}

// Recorded reports whether the status of the Service recorded an address of it, by the last claim or write.
func (a *Allocator) Recorded(key ServiceKey) bool {
	s := a.services[key]
	return s != nil && len(s.recorded) > 0
}

// Holders returns the Services on the address, in order. They include those that gave it up and whose status is not
// written yet.
func (a *Allocator) Holders(addr netip.Addr) []ServiceKey {
	u := a.units[addr]
	if u == nil {
		return nil
	}
	keys := make([]ServiceKey, len(u.holders))
	for i, s := range u.holders {
		keys[i] = s.claim.Service
	}
	return keys
}

// PoolOf returns the name of the pool in use that has the address, empty for none.
func (a *Allocator) PoolOf(addr netip.Addr) string {
	if sp, ok := a.find(addr); ok {
		return sp.pool.Name
	}
	return ""
}

// Has reports whether a pool lists the address. The pool need not be in use.
func (a *Allocator) Has(addr netip.Addr) bool {
	_, used := a.find(addr)
	return used || a.unusable(addr) != nil
}

// NextExpiry returns when the first cool-down ends: call Reevaluate at that time. False: there is no cool-down.
func (a *Allocator) NextExpiry() (time.Time, bool) {
	return a.cooling.next()
}

// ChangedPools returns the pools whose status changed since the last call, by name.
func (a *Allocator) ChangedPools() []string {
	names := slices.Sorted(maps.Keys(a.dirty))
	clear(a.dirty)
	return names
}
