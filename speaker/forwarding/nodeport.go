package forwarding

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// nodePortAddresses returns the addresses of this node that serve NodePorts: its InternalIPs, or all of
// its addresses within Options.NodePortCIDRs. Loopback and link-local addresses are excluded. The result may be empty.
func nodePortAddresses(v *view.View, node view.Node, o Options) []netip.Addr {
	if len(o.NodePortCIDRs) == 0 {
		return node.Addresses
	}
	addrs := map[netip.Addr]struct{}{}
	for _, a := range slices.AppendSeq(slices.Clone(node.Addresses), maps.Keys(v.Host)) {
		if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
			continue
		}
		if slices.ContainsFunc(o.NodePortCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			addrs[a] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
}

// isHost reports whether an address is one of this node itself, which an external IP may be. It must not be taken from
// the node, nor may the node's own ports be refused there.
func isHost(v *view.View, addr netip.Addr, node view.Node) bool {
	_, host := v.Host[addr]
	return host || slices.Contains(node.Addresses, addr)
}
