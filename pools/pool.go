package pools

import (
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
