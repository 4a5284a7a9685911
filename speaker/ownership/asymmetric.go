package ownership

import (
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// This file handles asymmetric links: one of two nodes does not receive the other (docs/design/failover.md, rule 7).

// yieldsTo reports whether this node finally yields to another owner that does not receive it, and so will not yield
// itself. That owner must be eligible, and its Node Ready. If that owner has no newer list and other members receive
// this node, the fault is on the other side: the status informs that owner through the API server (rule 7 of
// docs/design/failover.md).
func (d *election) yieldsTo(h otherOwner) bool {
	if d.able(h.node) != noReason || !d.hasEndpoints(h.node, true) || !d.view.Nodes[h.node].Ready {
		return false
	}
	if h.claim.Generation > d.vip.Generation || !d.view.Members.Received() {
		return true
	}
	d.asymmetric = h.node
	return false
}

// informed reports whether this node, which receives no other member, reads in the status that another node owns the
// VirtualIP and reports an asymmetric link (rule 7 of docs/design/failover.md).
func (d *election) informed() bool {
	return d.vip.Contested && d.alone && d.ownsUnreachable(d.vip.ReportedOwner)
}

// receivesOthers reports whether this node has received other members for long enough to receive all that are present.
func (d *election) receivesOthers() bool {
	return !d.alone && d.view.Members.Informed() && d.passed(d.informedAt.Add(contest*d.interval))
}

// ownsUnreachable reports whether the owner named in the status may still be alive although it is unreachable.
func (d *election) ownsUnreachable(node string) bool {
	return node != "" && node == d.vip.ReportedOwner && node != d.self && !d.reachable(node) && d.view.Nodes[node].Ready
}

// recordRivals counts how often other owners appeared and stopped. An owner that asked this node to take over does not
// count: this node has announced itself since.
func (d *election) recordRivals() {
	t := &d.ownership
	rivals := t.held && t.successor == "" && slices.ContainsFunc(d.otherOwners, func(h otherOwner) bool { return h.claim.State == view.Held })
	if t.held && t.rivals && !rivals {
		t.epoch++
	}
	t.rivals = rivals
}
