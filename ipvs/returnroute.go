package ipvs

import (
	"net/netip"
	"slices"
)

// ReturnRoute is the route of the answers of some addresses on a node.
type ReturnRoute struct {
	// Gateway is the router, on the network of Interface. Subnets are those of Interface in the family of Gateway, which
	// need no router.
	Gateway   netip.Addr
	Interface string
	Subnets   []netip.Prefix
	// Prefixes are the addresses, all of the family of Gateway. No other ReturnRoute of the node has one of them.
	Prefixes []netip.Prefix
}

// Equal reports whether two routes are equal.
func (r ReturnRoute) Equal(s ReturnRoute) bool {
	return r.Gateway == s.Gateway && r.Interface == s.Interface && slices.Equal(r.Subnets, s.Subnets) && slices.Equal(r.Prefixes, s.Prefixes)
}
