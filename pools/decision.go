package pools

import "net/netip"

// Decision is the answer to a Claim.
type Decision struct {
	// Lease is what the Service holds now, in the order of its families. Empty: it waits.
	Lease []Address
	// Changed is true when Lease differs from what the Allocator held for the Service before, or its Held when it is new.
	// With KeepUntilWritten it stays true until Written.
	Changed bool
	// Freed are the addresses given up by this decision. With KeepUntilWritten they are not free yet, and the decisions
	// until then name them again.
	Freed []netip.Addr
	// Reallocated is true when the claim's Reallocate has been carried out: an address that no pool admits was given
	// up, and none is left. With KeepUntilWritten it stays true until Written.
	Reallocated bool
	// Moves are the addresses that change by this decision, with the cause. With KeepUntilWritten the decisions until
	// Written name them again.
	Moves []Move
	// Reason is Allocated when the claim is met in full, else why not.
	Reason Reason
	// Message says it for people: the object, the field and the mend. Empty when Allocated.
	Message string
}

// Reason is why a decision came out as it did. Its text is fit for a condition, an Event and a metric label.
type Reason string

// The reasons.
const (
	// Allocated: the claim is met in full.
	Allocated Reason = "Allocated"
	// SecondFamilyPending: PreferDualStack has one family; the other comes when a pool can give it.
	SecondFamilyPending Reason = "SecondFamilyPending"
	// Draining: the Service keeps an address that no pool admits it to any more.
	Draining Reason = "Draining"

	// InvalidRequest: the request cannot be read, or contradicts itself.
	InvalidRequest Reason = "InvalidRequest"
	// WrongFamily: an address asked for is of a family the Service does not have, or two are of one family.
	WrongFamily Reason = "WrongFamily"
	// AddressOutsidePools: the address asked for is in no usable pool.
	AddressOutsidePools Reason = "AddressOutsidePools"
	// AddressTaken: another Service holds the address asked for.
	AddressTaken Reason = "AddressTaken"
	// AddressAvoided: the pool does not give out addresses ending in .0 or .255.
	AddressAvoided Reason = "AddressAvoided"
	// AddressOfNode: a node has the address asked for.
	AddressOfNode Reason = "AddressOfNode"
	// SharingRefused: another Service has the sharing key, and its address cannot be shared with this one; or the
	// Service keeps an address that it cannot share any more.
	SharingRefused Reason = "SharingRefused"
	// PoolNotFound: there is no pool of the name asked for.
	PoolNotFound Reason = "PoolNotFound"
	// PoolOverlapping: the pool asked for is not used because it overlaps an older one.
	PoolOverlapping Reason = "PoolOverlapping"
	// PoolUnreadable: the pool asked for cannot be read.
	PoolUnreadable Reason = "PoolUnreadable"
	// PoolNotAdmitting: the pool's serviceAllocation does not admit the Service.
	PoolNotAdmitting Reason = "PoolNotAdmitting"
	// PoolLacksFamily: the pool asked for has no address of the family.
	PoolLacksFamily Reason = "PoolLacksFamily"
	// PoolExhausted: every pool that admits the Service is full.
	PoolExhausted Reason = "PoolExhausted"
	// QuotaReached: the namespace holds as many addresses as the pool allows it.
	QuotaReached Reason = "QuotaReached"
	// NoPool: no pool auto-assigns addresses of the family to the Service.
	NoPool Reason = "NoPool"
)

// Warning says whether the outcome deserves a Warning Event.
func (r Reason) Warning() bool { return r != Allocated && r != SecondFamilyPending }
