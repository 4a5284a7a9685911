package forwarding

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// ranges returns the filter elements that restrict a virtual server to the Service's source ranges. If
// any range was given, a family without one is closed. A range of length 0 opens its family.
//
// Clients on the node itself have the virtual address as their source. If the ranges contain an address of the node,
// the virtual address is allowed, too.
func (w *planning) ranges(key ipvs.Key) []ipvs.Element {
	if !w.svc.Restricted {
		return nil
	}
	var sources []netip.Prefix
	self := false
	for _, prefix := range w.svc.Sources {
		if prefix.Addr().Is4() != key.Addr.Is4() {
			continue
		}
		if prefix.Bits() == 0 {
			return nil
		}
		sources = append(sources, prefix)
		self = self || w.holdsNode(prefix)
	}
	if self {
		sources = append(sources, netip.PrefixFrom(key.Addr, key.Addr.BitLen()))
	}
	out := []ipvs.Element{{Set: ipvs.Restricted, Key: key}}
	for _, prefix := range ipvs.Disjoint(sources) {
		out = append(out, ipvs.Element{Set: ipvs.Allowed, Key: key}.From(prefix))
	}
	return out
}

// holdsNode reports whether the prefix contains an address of this node.
func (w *planning) holdsNode(prefix netip.Prefix) bool {
	for _, a := range w.node.Addresses {
		if prefix.Contains(a) {
			return true
		}
	}
	for a := range w.view.Host {
		if prefix.Contains(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return true
		}
	}
	return false
}
