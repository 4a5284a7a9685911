// Package pools decides which address a Service gets.
//
// It is pure: no I/O, no clock, no goroutine, no Kubernetes type. Time is an argument. One goroutine owns an Allocator,
// or its callers lock it.
//
//	a := pools.New()
//	a.SetPools(all)        // the full set, after every change
//	a.SetNamespace(ns, labels)
//	a.Adopt(claims)        // after a start, before the first Assign: the addresses that Services hold already
//	d := a.Assign(claim, now)
//	a.Written(key, now)    // the status shows the decision: what it gave up is free
//	a.Release(key, now)
//	for _, key := range a.Reevaluate(now) { ... }  // after every call above: the Services whose decision changed
package pools

import (
	"cmp"
	"net/netip"
	"strings"
)

// ServiceKey names a Service.
type ServiceKey struct {
	Namespace, Name string
}

// String returns namespace/name.
func (k ServiceKey) String() string { return k.Namespace + "/" + k.Name }

// Compare orders by namespace, then name.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// Family is IPv4 or IPv6.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

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

// FamilyPolicy is Service.spec.ipFamilyPolicy.
type FamilyPolicy uint8

// The policies, as in Kubernetes.
const (
	SingleStack FamilyPolicy = iota
	PreferDualStack
	RequireDualStack
)

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

// Address is one address that a Service holds, and the pool it came from.
type Address struct {
	Addr netip.Addr
	Pool string
}

// Compare orders by address, then pool.
func (a Address) Compare(o Address) int {
	return cmp.Or(a.Addr.Compare(o.Addr), strings.Compare(a.Pool, o.Pool))
}
