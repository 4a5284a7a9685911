package routes

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// Plan plans the sessions and routes of the node, after the data plane is planned. touched must name everything in the
// View that changed since the last call. The Routing belongs to the planner, and the next call changes it.
func (p *Planner) Plan(v *view.View, touched view.Touched, now time.Time) (Routing, ChangedRouting) {
	p.changed = newChangedRouting()
	_, own := touched.Nodes[p.name]
	all := own || touched.All || touched.BGPAdvertisements
	if node, exists := v.Nodes[p.name]; exists {
		p.node = knownAs(node, p.node)
	}
	if own || touched.All || len(touched.BGPPeers) > 0 {
		all = p.planPeers(v) || all
	}
	all = p.decommission.update(p.node, now) || all
	p.changed.NodeDecommissioning = p.routing.BGP.NodeDecommissioning != p.node.Decommissioning()
	p.routing.BGP.NodeDecommissioning = p.node.Decommissioning()
	addrs := p.touchedAddresses(v, touched)
	why := map[netip.Prefix]view.Reason{} // of prefixes whose route may differ
	if all {
		p.ads = slices.Sorted(maps.Keys(v.BGPAdvertisements))
		clear(p.alone)
		for addr := range p.addrs {
			addrs[addr] = struct{}{}
		}
		for addr := range p.byAddr {
			addrs[addr] = struct{}{}
		}
		for prefix := range p.counts {
			why[prefix] = view.Announced
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) { // the reason of the last one is reported
		p.decideAddress(v, addr, why)
	}
	for prefix, reason := range why {
		p.decideRoute(v, prefix, reason)
	}
	return p.routing, p.changed
}
