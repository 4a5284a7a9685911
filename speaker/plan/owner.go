package plan

import (
	"cmp"
	"slices"
	"time"
)

// Timeouts of the ownership decision (docs/design/failover.md).
const (
	// claimWait is how long a candidate waits for each one before it in rank, and an owner for its successor.
	claimWait = time.Second
	// asymmetricWait is how long an owner waits for another owner to receive it (a port may lose everything for a moment).
	asymmetricWait = 3 * time.Second
	// partWait is the number of intervals of isolation on one of several interfaces after which a node hands over. It
	// exceeds the time until an interface counts after its carrier returned: its port starts to forward, the first
	// heartbeat arrives, and a dead time of listening passes.
	partWait = 15
	// contest is the number of intervals after which an owner with the older list yields.
	contest         = 3
	defaultInterval = 200 * time.Millisecond
	// unlisted is the rank of a node outside the list.
	unlisted = 1<<16 - 1
)

// otherOwner is another owner, by its own claim.
type otherOwner struct {
	node       string
	claim      Claim
	asymmetric bool // it does not receive this node
	// returned is set if it counted as dead until just now.
	returned bool
}

func (h otherOwner) compare(i otherOwner) int {
	return cmp.Or(cmp.Compare(h.claim.State, i.claim.State), cmp.Compare(h.claim.Rank, i.claim.Rank), cmp.Compare(h.node, i.node))
}

// election is the decision about the owner of one VirtualIP.
type election struct {
	unit
	vip  VIP
	self string
	now  time.Time
	// interval is the heartbeat interval.
	interval time.Duration
	// blocker is the blocker of this node, releaseReason why it releases while another node can take over; Owner for none.
	blocker, releaseReason Reason
	// otherOwners are the other reachable owners; the one that will remain comes first.
	otherOwners []otherOwner
	// candidates are the nodes that may own the VirtualIP, in list order. An observer among them can only be waited
	// for.
	candidates []string
	observers  map[string]bool
	declined   map[string]bool
	// informedAt is since when members are reachable and all of their claims are known.
	informedAt time.Time
	// claimants are the other nodes with a claim, reachable or not.
	claimants []string
	// segments are the interfaces on which a member must be received to count; none: any.
	segments map[string]struct{}
	// asymmetric is another owner with an asymmetric link: it does not receive this node and learns of it from the status.
	// alone is set while this node receives no member where it counts.
	asymmetric string
	alone      bool
	// rival is an unreachable node that the status names although this node is an owner, too.
	rival string
	// partial is set if this node can answer only on some of its interfaces for an address, because it is isolated on
	// another one.
	partial bool
	// unsure is set while the claims of a reachable node are not all known.
	unsure    bool
	ownership ownership
	// wake is when to decide again, zero for never.
	wake time.Time
}

// ownership is the ownership state of a VirtualIP between two decisions.
type ownership struct {
	held bool
	// moved, at and from are the reason, time and previous owner of the last move. vacant is since when there was no
	// owner then.
	moved  Reason
	at     time.Time
	from   string
	vacant time.Time
	// probe is set if no node is known to have answered. A claim is no proof: its probe may have found a conflict.
	probe bool
	// before are the nodes that rank before this one in the list of its ownership, and so are not asked to take over.
	before []string
	// named is the generation of the last list while the status named this node, 0 if it has not.
	named int64
	// successor was asked to take over at asked, after those in tried did not.
	successor string
	asked     time.Time
	tried     []string
	// contested is since when an owner with a newer list is observed.
	contested time.Time
	// asymmetricSince is since when an owner is observed that does not receive this node. barred is an unreachable node
	// that proved to answer.
	asymmetricSince time.Time
	barred          string
	// parted is since when this node is isolated on one of several interfaces.
	parted time.Time
	// rivals is set while another node claims ownership, too; epoch counts how often that ended.
	rivals bool
	epoch  int
	// reported is set once the status names this node.
	reported bool
	// last is the other node last observed as the owner; empty is since when there is no owner.
	last  string
	empty time.Time
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
			*t = ownership{moved: why, at: d.now, last: t.last, barred: t.barred, parted: t.parted}
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

// may reports whether this node is a candidate.
func (d *election) may() bool { return slices.Contains(d.candidates, d.self) }

// recordVacancy records since when there is no owner. An observer records nothing.
func (d *election) recordVacancy() {
	switch t := &d.ownership; {
	case t.held || len(d.otherOwners) > 0 || d.view.Members.Observer:
		t.empty = time.Time{}
	case t.empty.IsZero():
		t.empty = d.now
	}
}

// shouldRelease returns why this node releases the VirtualIP at once, empty if it keeps it (rules 4 to 7).
func (d *election) shouldRelease() Reason {
	if d.blocker != Owner {
		return d.blocker
	}
	if d.informed() {
		d.ownership.barred = d.vip.ReportedOwner
		return Yielded
	}
	newer, asymmetric, yields := false, false, false
	for _, h := range d.otherOwners {
		switch {
		case h.returned: // it may have been paused, and then releases everything
		case d.ownership.successor != "" && h.claim.State == Held:
			if d.releaseReason == PartlyIsolated {
				return PartlyIsolated
			}
			return HandedOver
		case d.ownership.successor != "":
			if h.claim.Successor != d.self && d.comesFirst(h) { // both hand over
				return HandedOver
			}
		case h.claim.State == HandingOver: // it releases once it receives this node's claim
		case h.asymmetric && !d.comesFirst(h):
			asymmetric, yields = true, d.yieldsTo(h) || yields
		case h.claim.Generation > d.vip.Generation:
			newer = true
		case d.comesFirst(h):
			return Yielded
		}
	}
	since(&d.ownership.asymmetricSince, asymmetric, d.now)
	since(&d.ownership.contested, newer, d.now)
	if d.asymmetric != "" && d.waits(d.ownership.asymmetricSince.Add(contest*d.interval), Owner) == "" {
		d.asymmetric = "" // it may just have started to receive this node
	}
	if yields && d.waits(d.ownership.asymmetricSince.Add(asymmetricWait), Yielded) != "" {
		return Yielded
	}
	if newer {
		return d.waits(d.ownership.contested.Add(contest*d.interval), Yielded)
	}
	return ""
}

// since keeps the time since when a condition holds.
func since(at *time.Time, is bool, now time.Time) {
	if !is {
		*at = time.Time{}
	} else if at.IsZero() {
		*at = now
	}
}

// comesFirst reports whether another owner ranks before this node: in their common list, or in this node's newer one.
func (d *election) comesFirst(h otherOwner) bool {
	rank := h.claim.Rank
	if h.claim.Generation != d.vip.Generation {
		rank = rankOf(d.vip.Nodes, h.node)
	}
	return cmp.Or(cmp.Compare(rank, rankOf(d.vip.Nodes, d.self)), cmp.Compare(h.node, d.self)) < 0
}

// waits returns the reason once the time has passed.
func (d *election) waits(until time.Time, then Reason) Reason {
	if !d.now.Before(until) {
		return then
	}
	d.wake = earlier(d.wake, until)
	return ""
}

// handOver asks another node to take over if this one should not be the owner. This node continues to answer until the
// successor does (rule 5).
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
		until := t.asked.Add(claimWait)
		if d.now.Before(until) {
			d.wake = earlier(d.wake, until)
			return
		}
		t.tried = append(slices.Clone(t.tried), t.successor)
	}
	next := slices.IndexFunc(targets, func(n string) bool { return !slices.Contains(t.tried, n) })
	if next < 0 && d.releaseReason == Owner && !d.requested() { // no node took over: that is settled
		t.successor, t.tried = "", nil
		t.before = d.settled()
		return
	}
	if next < 0 {
		t.tried, next = nil, 0
	}
	t.successor, t.asked = targets[next], d.now
	d.wake = earlier(d.wake, d.now.Add(claimWait))
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
		if n == d.self && d.releaseReason == Owner {
			break
		}
		if n != d.self && !d.observers[n] {
			out = append(out, n)
			newly = newly || !slices.Contains(d.ownership.before, n)
		}
	}
	if d.releaseReason == Owner && !newly {
		return nil
	}
	return out
}

// tryAcquire acquires a VirtualIP without an owner if this node's rank permits it (rule 3), or one offered to it (rule
// 5).
func (d *election) tryAcquire() {
	for _, h := range d.otherOwners {
		if h.claim.State == Held {
			return
		}
	}
	for _, h := range d.otherOwners {
		if h.claim.Successor == d.self {
			d.acquire(TakenOver)
			return
		}
	}
	if len(d.otherOwners) > 0 {
		return
	}
	wait := time.Duration(d.waitingRank()) * claimWait
	if d.unsure {
		wait += claimWait
	}
	if d.waits(d.ownership.empty.Add(wait), Owner) == "" {
		return
	}
	switch {
	case d.ownership.last != "":
		d.acquire(OwnerLost)
	case d.vip.ReportedOwner == d.self:
		d.acquire(Restarted)
	case d.vip.ReportedOwner != "":
		d.acquire(OwnerLost)
	default:
		d.acquire(FirstUse)
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

func (d *election) acquire(why Reason) {
	t := d.ownership
	d.ownership = ownership{
		held: true, moved: why, at: d.now, vacant: t.empty,
		probe: d.vip.ReportedOwner == "" && why != TakenOver, before: before(d.vip.Nodes, d.self), last: t.last,
		parted: t.parted,
	}
	if why == OwnerLost || why == TakenOver {
		d.ownership.from = cmp.Or(t.last, d.vip.ReportedOwner)
	}
}

// claim returns this node's claim of the VirtualIP, and whether it has one.
func (d *election) claim() (Claim, bool) {
	rank := rankOf(d.vip.Nodes, d.self)
	c := Claim{State: Held, Generation: d.vip.Generation, Rank: rank}
	switch {
	case d.ownership.held && d.ownership.successor != "":
		c.State, c.Successor = HandingOver, d.ownership.successor
	case d.ownership.held:
	case rank == unlisted || d.may() && !d.partial && d.ownership.barred == "" || d.passing():
		return Claim{}, false
	default:
		c.State = Declined
	}
	return c, true
}

// passing reports whether the blocker of this node may be temporary: it has not received the others yet, or its
// Services are late. The others then wait for it.
func (d *election) passing() bool {
	return d.blocker == Observer || d.blocker == NoService || d.blocker == Isolated && d.ownership.moved != Isolated
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

// earlier returns the earlier of two times; zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
