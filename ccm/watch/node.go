package watch

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// StatusUnknown reports whether the Ready condition of a node is Unknown: the last report of its speaker is then
// outdated.
func StatusUnknown(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionUnknown
		}
	}
	return false
}

// Addresses parses a list of addresses. An entry that is none is left out.
func Addresses(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// NodeAddresses returns the addresses on which the node is reachable.
func NodeAddresses(n *v1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type != v1.NodeInternalIP && a.Type != v1.NodeExternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, addr.Unmap().WithZone(""))
		}
	}
	return out
}
