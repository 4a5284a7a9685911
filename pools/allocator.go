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
