package pools

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Claim is what a Service requests, and what it held according to its own status. The Allocator keeps it: its slices
// and maps must not change afterwards.
type Claim struct {
	Service ServiceKey
	// Created orders Services that wait for the same address: the oldest first, then by name.
	Created time.Time
	// Labels of the Service, for the pools' service selectors.
	Labels map[string]string

	// Families is spec.ipFamilies. Empty means IPv4.
	Families []Family
	Policy   FamilyPolicy

	// Addresses requested exactly (ironlb.io/ips or spec.loadBalancerIP), at most one per family.
	Addresses []netip.Addr
	// Pool requested by name (ironlb.io/ip-pool).
	Pool string
	// Invalid states why the request cannot be parsed (unparsable, annotation and field disagree). It names the field
	// and the fix. The Service then keeps what it holds and gets nothing new.
	Invalid string
	// Reallocate (ironlb.io/reallocate) gives up an address that no pool accepts any more. It counts as one request: see
	// Decision.Reallocated.
	Reallocate bool
	// ReallocateDone is the value of ironlb.io/reallocate that was carried out, for the message that requires
	// another one.
	ReallocateDone string

	// SharingKey, Ports, Local (externalTrafficPolicy Local) and Selector determine which Services may share an
	// address. Selector is any canonical text of spec.selector, empty for none.
	SharingKey string
	Ports      []Port
	Local      bool
	Selector   string

	// Held is what the Service's status records of IronLB's own assignments. It counts only while the Allocator holds
	// nothing for this Service: the state of the Allocator is newer than any cache.
	Held []Address
	// Lost is what the controller recorded as assigned to the Service and its status does not show. It counts when Held
	// does, after all Held.
	Lost []Address
}

// sharesAs reports whether both claims allow others the same: to share an address with them.
func (c *Claim) sharesAs(o *Claim) bool {
	return c.SharingKey == o.SharingKey && c.Local == o.Local && c.Selector == o.Selector &&
		slices.Equal(c.Ports, o.Ports) && maps.Equal(c.Labels, o.Labels)
}

// Port is one port of a Service.
type Port struct {
	Protocol string // TCP, UDP or SCTP
	Number   uint16
}

var onlyIPv4 = []Family{IPv4}

// families returns the families wanted, the first one first.
func (c *Claim) families() []Family {
	switch {
	case len(c.Families) == 0:
		return onlyIPv4
	case c.Policy == SingleStack:
		return c.Families[:1]
	}
	return c.Families
}

// requested returns the exact address requested in the family, if any.
func (c *Claim) requested(f Family) netip.Addr {
	for _, a := range c.Addresses {
		if FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}
