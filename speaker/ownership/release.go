package ownership

import (
	"cmp"

	"github.com/ironlb/ironlb/speaker/view"
)

// shouldRelease returns why this node releases the VirtualIP at once, noReason if it keeps it (rules 4 to
// 7 of docs/design/failover.md).
func (d *election) shouldRelease() view.Reason {
	if d.blocker != noReason {
		return d.blocker
	}
	if d.informed() {
		d.ownership.barred = d.vip.ReportedOwner
		return view.Yielded
	}
	newer, asymmetric, yields := false, d.asymmetric != "", false
	for _, h := range d.otherOwners {
		switch {
		case h.returned: // it may have been paused, and then releases everything
		case d.ownership.successor != "" && h.claim.State == view.Held:
			if d.releaseReason == view.PartlyIsolated {
				return view.PartlyIsolated
			}
			return view.HandedOver
		case d.ownership.successor != "":
			if h.claim.Successor != d.self && d.comesFirst(h) { // both hand over
				return view.HandedOver
			}
		case h.claim.State == view.HandingOver: // it releases once it receives this node's claim
		case h.asymmetric && !d.comesFirst(h):
			asymmetric, yields = true, d.yieldsTo(h) || yields
		case h.claim.Generation > d.vip.Generation:
			newer = true
		case d.comesFirst(h):
			return view.Yielded
		}
	}
	since(&d.ownership.asymmetricSince, asymmetric, d.now)
	since(&d.ownership.contested, newer, d.now)
	if d.asymmetric != "" && !d.passed(d.ownership.asymmetricSince.Add(contest*d.interval)) {
		d.asymmetric = "" // it may just have started to receive this node
	}
	if yields && d.passed(d.ownership.asymmetricSince.Add(AsymmetricWait)) {
		return view.Yielded
	}
	if newer && d.passed(d.ownership.contested.Add(contest*d.interval)) {
		return view.Yielded
	}
	return noReason
}

// comesFirst reports whether another owner ranks before this node: in their common list, or in this node's newer one.
func (d *election) comesFirst(h otherOwner) bool {
	rank := h.claim.Rank
	if h.claim.Generation != d.vip.Generation {
		rank = rankOf(d.vip.Nodes, h.node)
	}
	return cmp.Or(cmp.Compare(rank, rankOf(d.vip.Nodes, d.self)), cmp.Compare(h.node, d.self)) < 0
}
