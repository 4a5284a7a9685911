package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// nodePortAddresses returns the addresses of this node that serve NodePorts (ipvs.md 2.4): its InternalIPs, or all of
// its addresses within Options.NodePortCIDRs. Loopback and link-local addresses are excluded. The result may be empty.
func nodePortAddresses(v *view.View, o Options) []netip.Addr {
	node := v.Nodes[o.Node].Addresses
	if len(o.NodePortCIDRs) == 0 {
		return node
	}
	addrs := map[netip.Addr]struct{}{}
	for _, a := range slices.AppendSeq(slices.Clone(node), maps.Keys(v.Host)) {
		if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
			continue
		}
		if slices.ContainsFunc(o.NodePortCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			addrs[a] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
}
