package ownership

import (
	"cmp"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// Timeouts of the ownership election (docs/design/failover.md).
const (
	// ClaimWait is how long a candidate waits for each one before it in rank, and an owner for its successor.
	ClaimWait = time.Second
	// AsymmetricWait is how long an owner waits for another owner to receive it (a port may lose everything for a moment).
	AsymmetricWait = 3 * time.Second
	// PartWait is the number of intervals of isolation on one of several interfaces after which a node hands over. It
	// exceeds the time until an interface counts after its carrier returned: its port starts to forward, the first
	// heartbeat arrives, and a dead time of listening passes.
	PartWait = 15
	// contest is the number of intervals after which an owner with the older list yields.
	contest = 3
	// DefaultInterval is the heartbeat interval of a Planner without one, for tests. The programs pass that of the
	// profile.
	DefaultInterval = 200 * time.Millisecond
	// unlisted is the rank of a node outside the list.
	unlisted = 1<<16 - 1
)

// noReason is the absence of a blocker and of a release reason.
const noReason view.Reason = ""

// ownership is the ownership state of a VirtualIP between two decisions.
type ownership struct {
	held bool
	move
	handover
	faults
	// probe is set if no node is known to have answered. A claim is no proof, nor is an offer to take over: the probe of
	// that node may have found a conflict, or not have ended.
	probe bool
	// reported is set once the status names this node.
	reported bool
	// used is set once the status has named an owner since its Service was assigned.
	used bool
	// last is the other node last observed as the owner; empty is since when there is no owner.
	last  string
	empty time.Time
}

// move is the last move of a VirtualIP to or from this node.
type move struct {
	// moved, at and from are its reason, its time and the previous owner. vacant is since when there was no owner then.
	moved  view.Reason
	at     time.Time
	from   string
	vacant time.Time
	// cause is why a lost owner answers no more.
	cause view.Reason
}

// handover is the progress of an owner that asks others to take over.
type handover struct {
	// before are the nodes that rank before this one in the list of its ownership, and so are not asked to take over.
	before []string
	// named is the generation of the last list while the status named this node, 0 if it has not.
	named int64
	// successor was asked to take over at asked, after those in tried did not.
	successor string
	asked     time.Time
	tried     []string
}

// faults are the observed faults of the network, and since when.
type faults struct {
	// contested is since when an owner with a newer list is observed.
	contested time.Time
	// asymmetricSince is since when an owner is observed that does not receive this node. barred is an unreachable node
	// that answers after all.
	asymmetricSince time.Time
	barred          string
	// parted is since when this node is isolated on one of several interfaces.
	parted time.Time
	// rivals is set while another node claims ownership, too; epoch counts how often that ended.
	rivals bool
	epoch  int
}

// since keeps the time since when a condition holds.
func since(at *time.Time, is bool, now time.Time) {
	if !is {
		*at = time.Time{}
	} else if at.IsZero() {
		*at = now
	}
}

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

// handOver asks another node to take over if this one should not be the owner. This node continues to answer until the
// successor does (rule 5 of docs/design/failover.md).
func (d *election) handOver() {
	t := &d.ownership
	d.readRequest()
	targets := d.targets()
	if len(targets) == 0 {
		t.successor, t.tried = "", nil
		t.before = d.settled()
		return
	}
	if slices.Contains(targets, t.successor) {
		until := t.asked.Add(ClaimWait)
		if d.now.Before(until) {
			d.wake = incremental.Earlier(d.wake, until)
			return
		}
		t.tried = append(slices.Clone(t.tried), t.successor)
	}
	next := slices.IndexFunc(targets, func(n string) bool { return !slices.Contains(t.tried, n) })
	if next < 0 && d.releaseReason == noReason && !d.requested() { // no node took over: that is settled
		t.successor, t.tried = "", nil
		t.before = d.settled()
		return
	}
	if next < 0 {
		t.tried, next = nil, 0
	}
	t.successor, t.asked = targets[next], d.now
	d.wake = incremental.Earlier(d.wake, d.now.Add(ClaimWait))
}

// requested reports whether the status names this node. A list written after that takes the owner into account, so its
// leading nodes are asked to take over, now or as soon as they are available. Any other list may be older than the
// ownership.
func (d *election) requested() bool { return d.vip.ReportedOwner == d.self }

// readRequest opens a request: a list newer than the one in force when the status came to name this node.
func (d *election) readRequest() {
	switch t := &d.ownership; {
	case !d.requested():
	case t.named == 0:
		t.named = d.vip.Generation
	case d.vip.Generation > t.named:
		t.named, t.before = d.vip.Generation, nil
	}
}

// settled returns the nodes that rank before this one and are not to be asked to take over. An open request stays open.
func (d *election) settled() []string {
	nodes := before(d.vip.Nodes, d.self)
	if !d.requested() {
		return nodes
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return !slices.Contains(d.ownership.before, n) })
}

// targets returns the nodes that may be asked to take over: all candidates if this node should release the VirtualIP.
// Otherwise it returns the candidates before this node, if the list has one there that was not at the time of
// acquisition.
func (d *election) targets() []string {
	var out []string
	newly := false
	for _, n := range d.candidates {
		if n == d.self && d.releaseReason == noReason {
			break
		}
		if n != d.self && !d.observes(n) {
			out = append(out, n)
			newly = newly || !slices.Contains(d.ownership.before, n)
		}
	}
	if d.releaseReason == noReason && !newly {
		return nil
	}
	return out
}

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
		faults: faults{parted: t.parted}, probe: d.vip.ReportedOwner == "", last: t.last, used: t.used,
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
