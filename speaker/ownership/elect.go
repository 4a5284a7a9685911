package ownership

import (
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// election collects the inputs of the election of one VirtualIP.
func (p *Planner) election(v *view.View, name string, vip view.VIP, now time.Time) *election {
	d := &election{
		unit: p.unit(v, vip), vip: vip, self: p.node, now: now, interval: p.interval,
		others:    others{observers: map[string]bool{}, declined: map[string]bool{}, informedAt: p.informedAt},
		ownership: p.vips[name].ownership,
	}
	d.segments, d.alone = d.allUsable(), true
	d.recordMembers(view.IDOf(name))
	d.blocker = d.whyNot()
	since(&d.ownership.parted, d.isolatedInPart(), now)
	d.partial = !d.ownership.parted.IsZero() && d.waits(d.ownership.parted.Add(PartWait*d.interval), view.PartlyIsolated) != ""
	if terminating := d.choose(false); terminating {
		d.choose(true)
	}
	if d.blocker == view.Owner && d.releaseReason == view.NoLocalEndpoint && !d.hasEndpoints(d.self, true) {
		d.blocker = view.NoLocalEndpoint
	}
	return d
}

// run updates the ownership: it first releases what this node cannot or must not own, then acquires what has no owner.
func (d *election) run() {
	t := &d.ownership
	if len(d.otherOwners) > 0 {
		t.last = d.otherOwners[0].node
	}
	if t.barred != "" && (!d.ownsUnreachable(t.barred) || d.receivesOthers()) {
		t.barred = ""
	}
	if t.held {
		if why := d.shouldRelease(); why != "" {
			*t = ownership{move: move{moved: why, at: d.now}, faults: faults{barred: t.barred, parted: t.parted}, last: t.last}
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

// recordVacancy records since when there is no owner. An observer records nothing.
func (d *election) recordVacancy() {
	switch t := &d.ownership; {
	case t.held || len(d.otherOwners) > 0 || d.view.Members.Observer:
		t.empty = time.Time{}
	case t.empty.IsZero():
		t.empty = d.now
	}
}
