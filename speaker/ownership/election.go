package ownership

import (
	"cmp"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// election is the decision about the owner of one VirtualIP.
type election struct {
	unit
	vip  view.VIP
	self string
	now  time.Time
	// interval is the heartbeat interval, of the members' number if known.
	interval time.Duration
	others
	eligibility
	ownership ownership
	// asymmetric is another owner with an asymmetric link: it does not receive this node and learns of it from the status.
	asymmetric string
	// rival is an unreachable node that the status names although this node is an owner, too.
	rival string
	// wake is when to decide again, zero for never.
	wake time.Time
}

// others is what this node observes of the others about the VirtualIP.
type others struct {
	// otherOwners are the other reachable owners; the one that will remain comes first.
	otherOwners []otherOwner
	declined    map[string]bool
	// claimants are the other nodes with a claim, reachable or not.
	claimants []string
	// segments are the interfaces on which a member must be received to count; none: any.
	segments map[string]struct{}
	// alone is set while this node receives no member where it counts.
	alone bool
	// informedAt is since when members are reachable and all of their claims are known.
	informedAt time.Time
}

// otherOwner is another owner, by its own claim.
type otherOwner struct {
	node       string
	claim      view.Claim
	asymmetric bool // it does not receive this node
	// returned is set if it counted as dead until just now.
	returned bool
}

func (h otherOwner) compare(i otherOwner) int {
	return cmp.Or(cmp.Compare(h.claim.State, i.claim.State), cmp.Compare(h.claim.Rank, i.claim.Rank), cmp.Compare(h.node, i.node))
}

// eligibility is which nodes may own the VirtualIP.
type eligibility struct {
	// blocker is the blocker of this node, releaseReason why it releases while another node can take over; noReason for
	// none.
	blocker, releaseReason view.Reason
	// candidates are the nodes that may own the VirtualIP, in list order. An observer among them can only be waited
	// for.
	candidates []string
	// partial is set if this node can answer only on some of its interfaces for an address, because it is isolated on
	// another one.
	partial bool
}

// election collects the inputs of the election of one VirtualIP.
func (p *Planner) election(v *view.View, name string, vip view.VIP, now time.Time) *election {
	d := &election{
		unit: p.unit(v, vip), vip: vip, self: p.node, now: now,
		interval:  cmp.Or(v.Members.Interval, p.interval),
		others:    others{declined: map[string]bool{}, informedAt: p.informedAt},
		ownership: p.vips[name].ownership,
	}
	d.segments, d.alone = d.allUsable(), true
	id := p.idOf(name)
	d.recordMembers(id, p.claimants[id])
	d.blocker = d.ownBlocker()
	since(&d.ownership.parted, d.isolatedInPart(), now)
	d.partial = !d.ownership.parted.IsZero() && d.passed(d.ownership.parted.Add(PartWait*d.interval))
	for _, l := range d.local {
		if slices.ContainsFunc(l.All(), func(n string) bool { return slices.Contains(vip.Nodes, n) && d.unavailable(n) == noReason }) {
			d.needed = append(d.needed, l.PortNodes)
		}
	}
	if terminating := d.choose(false); terminating {
		d.choose(true)
	}
	if d.blocker == noReason && d.releaseReason == view.NoLocalEndpoint && !d.hasEndpoints(d.self, true) && !(d.hasSome() && len(d.candidates) > 0) {
		d.blocker = view.NoLocalEndpoint
	}
	return d
}

// run updates the ownership: it first releases what this node cannot or must not own, then acquires what has no owner.
func (d *election) run() {
	t := &d.ownership
	t.used = t.used || d.vip.ReportedOwner != ""
	if len(d.otherOwners) > 0 {
		t.last = d.otherOwners[0].node
	}
	if len(d.addrs) == 0 { // who owned it does not matter to the next Service
		t.last, t.used = "", false
	}
	if t.barred != "" && (!d.ownsUnreachable(t.barred) || d.receivesOthers()) {
		t.barred = ""
	}
	if t.held {
		if why := d.shouldRelease(); why != noReason {
			*t = ownership{move: move{moved: why, at: d.now}, faults: faults{barred: t.barred, parted: t.parted}, last: t.last, used: t.used}
		} else {
			d.handOver()
		}
	}
	d.recordRivals()
	d.recordVacancy()
	if !t.held && d.may() && t.barred == "" {
		if d.informed() { // it would be released again
			t.barred = d.vip.ReportedOwner
		} else {
			d.tryAcquire()
		}
	}
	t.reported = t.held && (t.reported || d.vip.ReportedOwner == d.self)
}

// recordVacancy records since when there is no owner. An observer records nothing, nor a node that reads in the status
// that an unreachable one is the owner.
func (d *election) recordVacancy() {
	switch t := &d.ownership; {
	case t.held || len(d.otherOwners) > 0 || d.view.Members.Observer || t.barred != "":
		t.empty = time.Time{}
	case t.empty.IsZero():
		t.empty = d.now
	}
}

// may reports whether this node is a candidate.
func (d *election) may() bool { return slices.Contains(d.candidates, d.self) }

// passed reports whether the time has passed. If not, the decision is due again then.
func (d *election) passed(at time.Time) bool {
	if !d.now.Before(at) {
		return true
	}
	d.wake = incremental.Earlier(d.wake, at)
	return false
}

// rankOf returns the rank of a node in the list.
func rankOf(nodes []string, node string) uint16 {
	if i := slices.Index(nodes, node); i >= 0 {
		return uint16(min(i, unlisted-1))
	}
	return unlisted
}

// before returns the nodes of the list that rank before a node.
func before(nodes []string, node string) []string {
	if i := slices.Index(nodes, node); i >= 0 {
		return nodes[:i]
	}
	return nodes
}
