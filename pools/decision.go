package pools

import "net/netip"

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

// Warning reports whether the outcome requires a Warning Event.
func (r Reason) Warning() bool { return r != Allocated && r != SecondFamilyPending }
