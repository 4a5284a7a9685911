package pools

import (
	"slices"
	"time"
)

// Pool is a set of addresses and the rules for giving them out. The Allocator keeps it: its slices must not be changed
// afterwards.
type Pool struct {
	Name string
	// Created decides which of two overlapping pools is used: the older one, then the one first by name.
	Created time.Time
	// Ranges in the order listed, not overlapping one another.
	Ranges []Range
	// AutoAssign false keeps the pool for Services that ask for it, or for one of its addresses.
	AutoAssign bool
	// AvoidBuggyIPs never gives out IPv4 addresses that end in .0 or .255.
	AvoidBuggyIPs bool
	// Allocation limits who may use the pool, and puts it before the open ones.
	Allocation Allocation
	// SharingNamespaces may share addresses of this pool with one another.
	SharingNamespaces []string
	// ReuseAfter is how long a freed address rests before another Service gets it by auto-assignment.
	ReuseAfter time.Duration
	// NamespaceQuota is the most addresses one namespace may hold from this pool.
	NamespaceQuota Limit
	// Unreadable: nobody can tell what the pool says, nor what it last said. It gives nothing; what is held of it is kept.
	// Its ranges and rules do not count.
	Unreadable bool
}

// Limit is a number that may be absent.
type Limit struct {
	Set bool
	Max int64
}

// Allocation is spec.serviceAllocation of a pool. The zero value is absent: everybody may use the pool.
type Allocation struct {
	// Set is true when the field is there, even when empty.
	Set bool
	// Priority: lower first, 0 last.
	Priority int32
	// Namespaces and NamespaceSelectors: a namespace in either list matches. Both empty: every namespace.
	Namespaces         []string
	NamespaceSelectors []Selector
	// ServiceSelectors: any of them matches. Empty: every Service.
	ServiceSelectors []Selector
}

// admits says whether a Service with these labels, in a namespace with those, may use the pool. known is false for a
// namespace nobody told us about, which no selector matches.
func (al *Allocation) admits(c *Claim, nsLabels map[string]string, known bool) bool {
	if len(al.Namespaces)+len(al.NamespaceSelectors) > 0 &&
		!slices.Contains(al.Namespaces, c.Service.Namespace) && !(known && anyMatch(al.NamespaceSelectors, nsLabels)) {
		return false
	}
	return len(al.ServiceSelectors) == 0 || anyMatch(al.ServiceSelectors, c.Labels)
}

func anyMatch(selectors []Selector, labels map[string]string) bool {
	return slices.ContainsFunc(selectors, func(s Selector) bool { return s.Matches(labels) })
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

// Matches says whether the labels meet every requirement. An unknown operator matches nothing.
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
