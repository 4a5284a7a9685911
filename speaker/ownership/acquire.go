package ownership

import (
	"cmp"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// tryAcquire acquires a VirtualIP without an owner if this node's rank permits it, or one offered to it (rules 3 and 5
// of docs/design/failover.md).
func (d *election) tryAcquire() {
	for _, h := range d.otherOwners {
		if h.claim.State == view.Held {
			return
		}
	}
	for _, h := range d.otherOwners {
		if h.claim.Successor == d.self {
			d.acquire(view.TakenOver)
			return
		}
	}
	if len(d.otherOwners) > 0 {
		return
	}
	wait := time.Duration(d.waitingRank()) * ClaimWait
	if d.unsure() {
		wait += ClaimWait
	}
	if !d.passed(d.ownership.empty.Add(wait)) {
		return
	}
	switch {
	case d.ownership.last != "":
		d.acquire(view.OwnerLost)
	case d.vip.ReportedOwner == d.self:
		d.acquire(view.Restarted)
	case d.vip.ReportedOwner != "":
		d.acquire(view.OwnerLost)
	default:
		d.acquire(view.FirstUse)
	}
}

// waitingRank returns the number of candidates before this node if there is no owner: those before it in the list, but
// first of all the node that the status names, whose speaker may have been restarted.
func (d *election) waitingRank() int {
	rank := slices.Index(d.candidates, d.self)
	if d.partial { // no node reaches all networks, and each publishes Declined
		for _, n := range before(d.vip.Nodes, d.self) {
			if d.reachable(n) && !slices.Contains(d.candidates, n) {
				rank++
			}
		}
	}
	switch held := slices.Index(d.candidates, d.vip.ReportedOwner); {
	case held == rank:
		return 0
	case held > rank:
		return rank + 1
	}
	return rank
}

func (d *election) acquire(why view.Reason) {
	t := d.ownership
	d.ownership = ownership{
		held: true, move: move{moved: why, at: d.now, vacant: t.empty}, handover: handover{before: before(d.vip.Nodes, d.self)},
		faults: faults{parted: t.parted}, probe: d.vip.ReportedOwner == "" && why != view.TakenOver, last: t.last, used: t.used,
	}
	if why == view.OwnerLost || why == view.TakenOver {
		d.ownership.from = cmp.Or(t.last, d.vip.ReportedOwner)
	}
	if why == view.OwnerLost {
		cause := d.against(d.ownership.from, false)
		d.ownership.cause = cmp.Or(cause, view.NodeDeclined)
		if cause == noReason && !t.used { // it owned the address for an earlier Service
			d.ownership.move = move{moved: view.FirstUse, at: d.now}
		}
	}
}
