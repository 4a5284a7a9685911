package pools

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Allocator knows the pools and who holds what. Its answers depend on the pools, the namespaces, what Services hold
// and the asking claim, not on the order in which it was told.
type Allocator struct {
	pools   map[string]*pool // every pool, usable or not
	spans   []span           // ranges of the pools in use, by first address
	open    []*pool          // pools in use that auto-assign to everybody, by name
	bound   []*pool          // pools in use that auto-assign by serviceAllocation, by priority, then name
	nsLabel map[string]map[string]string
	nodes   map[string][]netip.Addr // by node, sorted
	ofNodes map[netip.Addr][]string // the nodes that have the address, sorted
	// hosts are the addresses that hosts have which are none of ours, with the name of the host.
	hosts  map[netip.Addr]string
	quotas bool // some pool has a quota
	keep   bool // see KeepUntilWritten

	services map[ServiceKey]*service
	inNS     map[string]map[ServiceKey]*service
	unmet    map[ServiceKey]struct{} // Services whose claim is not met in full
	units    map[netip.Addr]*unit
	homeless map[netip.Addr]*unit // in use, but in no pool in use
	ledgers  map[string]*ledger   // by pool name, also of pools that are gone while addresses of theirs are held
	byKey    map[string]*keyGroup
	wakes    wakes
	rests    rests
	dirty    map[string]struct{} // pools whose status changed
}

// New returns an Allocator without pools.
func New() *Allocator {
	return &Allocator{
		pools:    map[string]*pool{},
		nsLabel:  map[string]map[string]string{},
		nodes:    map[string][]netip.Addr{},
		ofNodes:  map[netip.Addr][]string{},
		services: map[ServiceKey]*service{},
		inNS:     map[string]map[ServiceKey]*service{},
		unmet:    map[ServiceKey]struct{}{},
		units:    map[netip.Addr]*unit{},
		homeless: map[netip.Addr]*unit{},
		ledgers:  map[string]*ledger{},
		byKey:    map[string]*keyGroup{},
		wakes:    newWakes(),
		rests:    newRests(),
		dirty:    map[string]struct{}{},
	}
}

// Adopt records what Services hold, as their Held says, without giving anything to anybody. Call it with all of them
// before the first Assign after a start. Of Services on one address that do not ask to share it, the older (then the
// first by name) stays; the others are returned: each leaves at its next Assign, as soon as there is another address
// for it. What the status of a Service lost (Lost) it has back, unless somebody else holds it.
func (a *Allocator) Adopt(claims []Claim) []ServiceKey {
	return a.adopt(claims)
}

// Assign answers the claim and records the answer. A claim that cannot be met leaves what the Service holds in place.
func (a *Allocator) Assign(c Claim, now time.Time) Decision {
	return a.assign(c, now)
}

// Release frees whatever the Service holds or waits for, and returns the addresses that nobody holds any more.
func (a *Allocator) Release(key ServiceKey, now time.Time) []netip.Addr {
	return a.release(key, now)
}

// KeepUntilWritten makes a Service keep the addresses that Assign freed until Written is called for it. Without it,
// a crash between two writes to the API server can leave one address in the status of two Services.
func (a *Allocator) KeepUntilWritten() { a.keep = true }

// Written tells that the Service's status records its lease and nothing else. The addresses it left are free now, and
// returned.
func (a *Allocator) Written(key ServiceKey, now time.Time) []netip.Addr {
	return a.written(key, now)
}

// Lease returns what the Service holds.
func (a *Allocator) Lease(key ServiceKey) []Address {
	if s := a.services[key]; s != nil {
		return slices.Clone(s.lease)
	}
	return nil
}

// Holders returns the Services on the address, in order, with those that left it and have not written so yet.
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

// Has says whether a pool lists the address, be the pool in use or not.
func (a *Allocator) Has(addr netip.Addr) bool {
	_, used := a.find(addr)
	return used || a.unusable(addr) != nil
}

// Wake returns the Services worth another Assign after what happened since the last call: those that wait and can now
// be served, and those whose pool changed under them; the oldest first. A Service is named once until it is assigned or
// released. When there is less room than there are Services waiting, only as many are named as there is room for: call
// Wake again after each Assign.
func (a *Allocator) Wake(now time.Time) []ServiceKey {
	return a.wake(now)
}

// Decline gives back the room set aside for a Service that Wake named and that cannot be assigned just now, so that
// the next one gets it. The Service is not named again before its next Assign: the caller tries again by itself.
func (a *Allocator) Decline(key ServiceKey) {
	a.decline(key)
}

// NextExpiry returns when the first address at rest may be given out again: call Wake at that time. False: never.
func (a *Allocator) NextExpiry() (time.Time, bool) {
	return a.rests.next()
}

// ChangedPools returns the pools whose status changed since the last call, by name.
func (a *Allocator) ChangedPools() []string {
	names := slices.Sorted(maps.Keys(a.dirty))
	clear(a.dirty)
	return names
}

// PoolStatus returns the state and counts of the pool. False: no such pool.
func (a *Allocator) PoolStatus(name string) (PoolStatus, bool) {
	return a.poolStatus(name)
}

// SetPools replaces the whole set of pools. Nothing held is lost: see Draining.
func (a *Allocator) SetPools(all []Pool) {
	a.setPools(all)
}

// SetNamespace tells the labels of a namespace, for the pools' namespace selectors.
func (a *Allocator) SetNamespace(name string, labels map[string]string) {
	a.setNamespace(name, labels, true)
}

// DeleteNamespace forgets a namespace.
func (a *Allocator) DeleteNamespace(name string) {
	a.setNamespace(name, nil, false)
}

// SetNode tells the addresses of a node: no Service gets one of them. Who has one already keeps it: see Draining.
func (a *Allocator) SetNode(name string, addrs []netip.Addr) {
	a.setNode(name, addrs)
}

// SetHosts replaces the addresses for which hosts answer that are none of ours, with the name of each host. None of
// them is given to a Service that does not ask for it. A Service that has one and did not ask for it gets another one
// at its next Assign, if there is any.
func (a *Allocator) SetHosts(hosts map[netip.Addr]string) {
	a.setHosts(hosts)
}

// DeleteNode forgets a node. Its addresses may be given out.
func (a *Allocator) DeleteNode(name string) {
	a.setNode(name, nil)
}
