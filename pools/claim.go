package pools

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// ServiceKey names a Service.
type ServiceKey struct {
	Namespace, Name string
}

// Family is IPv4 or IPv6.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyPolicy is Service.spec.ipFamilyPolicy.
type FamilyPolicy uint8

// The policies, as in Kubernetes.
const (
	SingleStack FamilyPolicy = iota
	PreferDualStack
	RequireDualStack
)

// Address is one address that a Service holds, and the pool it came from.
type Address struct {
	Addr netip.Addr
	Pool string
}

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

// Port is one port of a Service.
type Port struct {
	Protocol string // TCP, UDP or SCTP
	Number   uint16
}

var onlyIPv4 = []Family{IPv4}

// Decision is the answer to a Claim.
type Decision struct {
	// Lease is what the Service holds now, in the order of its families. Empty: it waits.
	Lease []Address
	// Changed is true until Written when Lease differs from what was written last, or from Held of a new Service.
	Changed bool
	// Freed are the addresses that the Service gave up. They are not free before Written, and the decisions until then
	// list them again.
	Freed []netip.Addr
	// Reallocated is true until Written when the claim's Reallocate has been carried out: an address that no pool
	// accepts was given up, and none is left.
	Reallocated bool
	// Moves are the addresses that change by this decision, with the cause. The decisions until Written list them again.
	Moves []Move
	// Reason is Allocated when the claim is met in full, else why not.
	Reason Reason
	// Message explains the Reason to a user: the object, the field and the fix. Empty when Allocated.
	Message string
}

// Reason is the typed outcome of a decision. Its text is fit for a condition, an Event and a metric label.
type Reason string

// The reasons.
const (
	// Allocated: the claim is met in full.
	Allocated Reason = "Allocated"
	// SecondFamilyPending: PreferDualStack has one family; the other comes when a pool can give it.
	SecondFamilyPending Reason = "SecondFamilyPending"
	// Draining: the Service keeps an address that no pool accepts it to any more.
	Draining Reason = "Draining"

	// InvalidRequest: the request cannot be parsed, or contradicts itself.
	InvalidRequest Reason = "InvalidRequest"
	// WrongFamily: a requested address is of a family that the Service does not have, or two are of one family.
	WrongFamily Reason = "WrongFamily"
	// AddressOutsidePools: the requested address is in no usable pool.
	AddressOutsidePools Reason = "AddressOutsidePools"
	// AddressTaken: another Service holds the requested address.
	AddressTaken Reason = "AddressTaken"
	// AddressAvoided: the pool does not assign addresses that end in .0 or .255.
	AddressAvoided Reason = "AddressAvoided"
	// AddressWithheld: something else has the requested address.
	AddressWithheld Reason = "AddressWithheld"
	// SharingRefused: another Service has the sharing key, and its address cannot be shared with this one. Or the
	// Service keeps an address that it cannot share any more.
	SharingRefused Reason = "SharingRefused"
	// PoolNotFound: no pool has the requested name.
	PoolNotFound Reason = "PoolNotFound"
	// PoolOverlapping: the requested pool is not used because it overlaps an older one.
	PoolOverlapping Reason = "PoolOverlapping"
	// PoolUnreadable: the requested pool cannot be parsed.
	PoolUnreadable Reason = "PoolUnreadable"
	// PoolNotAdmitting: the pool's serviceAllocation does not accept the Service.
	PoolNotAdmitting Reason = "PoolNotAdmitting"
	// PoolLacksFamily: the requested pool has no address of the family.
	PoolLacksFamily Reason = "PoolLacksFamily"
	// PoolExhausted: every pool that accepts the Service is full.
	PoolExhausted Reason = "PoolExhausted"
	// QuotaReached: the namespace holds as many addresses as the pool allows it.
	QuotaReached Reason = "QuotaReached"
	// NoPool: no pool auto-assigns addresses of the family to the Service.
	NoPool Reason = "NoPool"
)

// Move is a change of the address of one family.
type Move struct {
	From, To netip.Addr
	// Why explains the move to a user.
	Why string
}

// String returns namespace/name.
func (k ServiceKey) String() string { return k.Namespace + "/" + k.Name }

// Compare orders by namespace, then name.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// String returns IPv4 or IPv6, as in Service.spec.ipFamilies.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return "no family"
}

// FamilyOf returns the family of a valid address. An IPv4-mapped IPv6 address is IPv6.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns the name as in Service.spec.ipFamilyPolicy.
func (p FamilyPolicy) String() string {
	switch p {
	case PreferDualStack:
		return "PreferDualStack"
	case RequireDualStack:
		return "RequireDualStack"
	}
	return "SingleStack"
}

// Compare orders by address, then pool.
func (a Address) Compare(o Address) int {
	return cmp.Or(a.Addr.Compare(o.Addr), strings.Compare(a.Pool, o.Pool))
}

// sharesAs reports whether both claims allow others the same: to share an address with them.
func (c *Claim) sharesAs(o *Claim) bool {
	return c.SharingKey == o.SharingKey && c.Local == o.Local && c.Selector == o.Selector &&
		slices.Equal(c.Ports, o.Ports) && maps.Equal(c.Labels, o.Labels)
}

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

// check refuses a request that contradicts itself.
func (c *Claim) check() (Reason, string) {
	if c.Invalid != "" {
		return InvalidRequest, c.Invalid
	}
	if len(c.Addresses) == 0 {
		return Allocated, ""
	}
	fams := c.families()
	seen := map[Family]netip.Addr{}
	for _, x := range c.Addresses {
		f := FamilyOf(x)
		if !slices.Contains(fams, f) {
			return WrongFamily, fmt.Sprintf("%s requests %s (%s), but its families are %v: request an address of these, or change spec.ipFamilies and spec.ipFamilyPolicy",
				c.Service, x, f, fams)
		}
		if o, has := seen[f]; has {
			return WrongFamily, fmt.Sprintf("%s requests two %s addresses, %s and %s: request at most one of each family", c.Service, f, o, x)
		}
		seen[f] = x
	}
	return Allocated, ""
}

// Warning reports whether the outcome requires a Warning Event.
func (r Reason) Warning() bool { return r != Allocated && r != SecondFamilyPending }

// moves returns the changes of the addresses in the Service's status under the plan. Call it before the plan is carried
// out.
func (a *Allocator) moves(s *service, p plan) []Move {
	var out []Move
	for _, to := range p.lease {
		f := FamilyOf(to.Addr)
		i := slices.IndexFunc(s.recorded, func(h Address) bool { return FamilyOf(h.Addr) == f })
		if i < 0 || holdsAddr(s.recorded, to.Addr) || holdsAddr(p.lease, s.recorded[i].Addr) {
			continue
		}
		from := s.recorded[i]
		out = append(out, Move{From: from.Addr, To: to.Addr, Why: a.moveReason(s, from, to)})
	}
	return out
}

// moveReason returns why the Service leaves an address for another one.
func (a *Allocator) moveReason(s *service, from, to Address) string {
	c, u := &s.claim, a.units[from.Addr]
	switch {
	case c.requested(FamilyOf(to.Addr)) == to.Addr:
		return "the Service requests " + to.Addr.String()
	case c.Pool != "" && to.Pool == c.Pool && from.Pool != c.Pool && a.PoolOf(from.Addr) != c.Pool:
		return "the Service requests pool " + c.Pool
	case u != nil && (a.hostAgainst(c, from.Addr) != "" || !a.accepted(u, c)):
		return a.drainCause(&query{claim: c, self: s}, u)
	}
	if u == nil {
		return "it was free by then, and no longer held by the Service"
	}
	var others []string
	for _, h := range u.holders {
		if h != s {
			others = append(others, h.claim.Service.String())
		}
	}
	if len(others) > 0 {
		return fmt.Sprintf("the Service can no longer share it with %s", strings.Join(others, ", "))
	}
	return "the Service may not keep it"
}
