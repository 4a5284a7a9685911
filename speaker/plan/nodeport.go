package plan

import (
	"maps"
	"net/netip"
	"slices"
)

// nodePortAddresses returns the addresses of this node that serve NodePorts (ipvs.md 2.4): its InternalIPs, or those of all
// its addresses that Options.NodePortCIDRs hold. Never loopback and link-local ones. There may be none.
func nodePortAddresses(v *View, o Options) []netip.Addr {
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
