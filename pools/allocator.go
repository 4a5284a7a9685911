package pools

import (
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
	nodes   map[string][]netip.Addr // by node, sorted
	ofNodes map[netip.Addr][]string // the nodes that have the address, sorted
	// hosts maps the addresses of foreign hosts to the name of the host.
	hosts  map[netip.Addr]string
	quotas bool // some pool has a quota
	keep   bool // see KeepUntilWritten

	services    map[ServiceKey]*service
	inNS        map[string]map[ServiceKey]*service
	unmet       map[ServiceKey]struct{} // Services whose claim is not met in full
	units       map[netip.Addr]*unit
	withoutPool map[netip.Addr]*unit // in use, but in no pool in use
	ledgers     map[string]*ledger   // by pool name, also of deleted pools while their addresses are held
	byKey       map[string]*keyGroup
	wakes       wakes
	cooling     coolingAddresses
	dirty       map[string]struct{} // pools whose status changed
}

// New returns an Allocator without pools.
func New() *Allocator {
	return &Allocator{
		pools:       map[string]*pool{},
		nsLabel:     map[string]map[string]string{},
		nodes:       map[string][]netip.Addr{},
		ofNodes:     map[netip.Addr][]string{},
		services:    map[ServiceKey]*service{},
		inNS:        map[string]map[ServiceKey]*service{},
		unmet:       map[ServiceKey]struct{}{},
		units:       map[netip.Addr]*unit{},
		withoutPool: map[netip.Addr]*unit{},
		ledgers:     map[string]*ledger{},
		byKey:       map[string]*keyGroup{},
		wakes:       newWakes(),
		cooling:     newCoolingAddresses(),
		dirty:       map[string]struct{}{},
	}
}

// Adopt records the addresses in Held of each claim and assigns nothing. Call it with all Services before the first
// Assign after a start. If Services on one address do not request to share it, the older one (then the first by name)
// stays. The others are returned: each moves at its next Assign, as soon as another address is available for it. A
// Service gets back the addresses that its status lost (Lost), unless another Service holds them.
func (a *Allocator) Adopt(claims []Claim) []ServiceKey {
	return a.adopt(claims)
}

// Assign decides the claim and records the decision. If the claim cannot be met, the Service keeps what it holds.
func (a *Allocator) Assign(c Claim, now time.Time) Decision {
	return a.assign(c, now)
}

// Release frees everything that the Service holds or waits for. It returns the addresses without a remaining holder.
func (a *Allocator) Release(key ServiceKey, now time.Time) []netip.Addr {
	return a.release(key, now)
}

// KeepUntilWritten makes a Service keep the addresses that Assign freed until Written is called for it. Without it,
// a crash between two writes to the API server can leave one address in the status of two Services.
func (a *Allocator) KeepUntilWritten() { a.keep = true }

// Written records that the Service's status shows its lease and nothing else. It frees and returns the addresses that
// the Service gave up.
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

// Wake returns the Services that need another Assign after the changes since the last call: waiting Services that can
// now be served, and Services whose pool changed. The oldest comes first. A Service is returned once until it is
// assigned or released. If there is less room than waiting Services, only as many are returned as there is room for.
// Call Wake again after each Assign.
func (a *Allocator) Wake(now time.Time) []ServiceKey {
	return a.wake(now)
}

// Decline gives back the room set aside for a Service that Wake returned and that cannot be assigned now, so that the
// next one gets it. Wake does not return the Service again before its next Assign: the caller retries on its own.
func (a *Allocator) Decline(key ServiceKey) {
	a.decline(key)
}

// NextExpiry returns when the first cool-down ends: call Wake at that time. False: there is no cool-down.
func (a *Allocator) NextExpiry() (time.Time, bool) {
	return a.cooling.next()
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

// SetPools replaces the full set of pools. No held address is lost: see Draining.
func (a *Allocator) SetPools(all []Pool) {
	a.setPools(all)
}

// SetNamespace sets the labels of a namespace, for the pools' namespace selectors.
func (a *Allocator) SetNamespace(name string, labels map[string]string) {
	a.setNamespace(name, labels, true)
}

// DeleteNamespace removes a namespace.
func (a *Allocator) DeleteNamespace(name string) {
	a.setNamespace(name, nil, false)
}

// SetNode sets the addresses of a node. No Service gets one of them. A Service that already has one keeps it: see
// Draining.
func (a *Allocator) SetNode(name string, addrs []netip.Addr) {
	a.setNode(name, addrs)
}

// SetHosts replaces the addresses of foreign hosts, with the name of each host. A Service gets such an address only if
// it requests it. A Service that has one and did not request it gets another one at its next Assign, if there is any.
func (a *Allocator) SetHosts(hosts map[netip.Addr]string) {
	a.setHosts(hosts)
}

// DeleteNode removes a node. Its addresses may be assigned.
func (a *Allocator) DeleteNode(name string) {
	a.setNode(name, nil)
}
