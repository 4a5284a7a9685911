package ownership

import (
	"github.com/ironlb/ironlb/speaker/view"
)

// dependsOn returns the nodes whose liveness and API state affect the decision. They are few while the VirtualIP has an
// owner. So a membership change costs in proportion to what the node owned, not to the lists that contain it.
func (d *election) dependsOn() map[string]struct{} {
	out := map[string]struct{}{d.self: {}}
	for _, n := range d.claimants {
		out[n] = struct{}{}
	}
	needed := d.vip.Nodes
	switch {
	case d.blocker == view.Observer: // no decision yet
		return out
	case len(d.local) > 0: // a node with a terminating endpoint counts if no node has another one
	case !d.ownership.held && len(d.otherOwners) > 0 && len(d.addrs) > 0:
		return out
	case d.ownership.held && d.releaseReason == noReason && !d.partial && (d.vip.ReportedOwner == "" || d.vip.ReportedOwner == d.self):
		needed = before(d.vip.Nodes, d.self) // nodes that may be asked to take over
	}
	for _, n := range needed {
		out[n] = struct{}{}
	}
	if d.vip.ReportedOwner != "" {
		out[d.vip.ReportedOwner] = struct{}{}
	}
	return out
}
