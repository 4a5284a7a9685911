package ownership

import (
	"github.com/ironlb/ironlb/speaker/view"
)

// claim returns this node's claim of the VirtualIP, and whether it has one.
func (d *election) claim() (view.Claim, bool) {
	rank := rankOf(d.vip.Nodes, d.self)
	c := view.Claim{State: view.Held, Generation: d.vip.Generation, Rank: rank}
	switch {
	case d.ownership.held && d.ownership.successor != "":
		c.State, c.Successor = view.HandingOver, d.ownership.successor
	case d.ownership.held:
	case rank == unlisted || d.may() && !d.partial && d.ownership.barred == "" || d.passing():
		return view.Claim{}, false
	default:
		c.State = view.Declined
	}
	return c, true
}

// passing reports whether the blocker of this node may be temporary: it has not received the others yet, or its
// Services are late. The others then wait for it.
func (d *election) passing() bool {
	return d.blocker == view.Observer || d.blocker == view.NoService || d.blocker == view.Isolated && d.ownership.moved != view.Isolated
}
