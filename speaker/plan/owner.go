package plan

import (
	"cmp"
	"slices"
	"time"
)

// How long others are waited for (docs/design/failover.md).
const (
	// claimWait is how long a candidate waits for each one that comes before it, and a holder for its successor.
	claimWait = time.Second
	// deafWait is how long a holder waits for another one to hear it (a port may lose everything for a moment).
	deafWait = 3 * time.Second
	// partWait is for how many intervals a node must be isolated on one of several interfaces to hand over: longer than
	// it takes until an interface counts whose carrier came back. That is until its port forwards, the first heartbeat,
	// and a dead time, for which it is listened to.
	partWait = 15
	// contest is after how many intervals a holder with the older list yields.
	contest         = 3
	defaultInterval = 200 * time.Millisecond
	// unlisted is the place of a node that the list does not name.
	unlisted = 1<<16 - 1
)

// holder is another node that says it answers.
type holder struct {
	node  string
	claim Claim
	deaf  bool // it does not hear this node
	// returned is set if it counted as dead until just now.
	returned bool
}

func (h holder) compare(i holder) int {
	return cmp.Or(cmp.Compare(h.claim.State, i.claim.State), cmp.Compare(h.claim.Place, i.claim.Place), cmp.Compare(h.node, i.node))
}

// deciding is the decision about one VirtualIP.
type deciding struct {
	unit
	vip  VIP
	self string
	now  time.Time
	// interval is that of the heartbeats.
	interval time.Duration
	// hard is why this node cannot answer at all, soft why it should not while another can; Owner if there is no reason.
	hard, soft Reason
	// holders are the other nodes heard that answer, the one that will stay first.
	holders []holder
	// candidates are the nodes that may answer, in the order of the list; an observer among them can only be waited for.
	candidates []string
	observers  map[string]bool
	declined   map[string]bool
	// informedAt is since when others are heard and all that they say is known.
	informedAt time.Time
	// claimants are the other nodes that say something of it, heard or not.
	claimants []string
	// ears are the interfaces on which others must be heard to count; none: anywhere.
	ears map[string]struct{}
	// deaf is a node that answers as well, does not hear this one, and is to read in the status that it is not alone; alone is set
	// while this node hears nobody where it counts.
	deaf  string
	alone bool
	// rival is a node that is not heard, and that the status names although this one answers, too.
	rival string
	// partial is set if this node can answer on some of its interfaces for an address only, since it is isolated on
	// another one.
	partial bool
	// unsure is set while the claims of a node that is heard are not all known.
	unsure bool
	tenure tenure
	// wake is when to decide again, zero for never.
	wake time.Time
}

// tenure is what is remembered of a VirtualIP from one decision to the next.
type tenure struct {
	held bool
	// moved is why it came or went, at that time; from who held it before, vacant since when nobody did then.
	moved  Reason
	at     time.Time
	from   string
	vacant time.Time
	// probe is set if no node is known to have answered: one that claimed may have found a conflict by probing.
	probe bool
	// before are the nodes that came before this one in the list by which it holds, and are not asked for that.
	before []string
	// named is the generation of the last list while the status named this node, 0 if it has not.
	named int64
	// successor was asked to take over at that time, after those in tried were in vain.
	successor string
	asked     time.Time
	tried     []string
	// contested is since when a holder with a newer list is seen.
	contested time.Time
	// unheard is since when a holder is seen that does not hear this node; barred is a node that was found to answer although it is not
	// heard.
	unheard time.Time
	barred  string
	// parted is since when this node is isolated on one of several interfaces.
	parted time.Time
	// rivals is set while another node says that it answers as well, again counts how often that ended.
	rivals bool
	again  int
	// reported is set once the status names this node.
	reported bool
	// last is the other node that was last seen to answer; empty since when nobody is.
	last  string
	empty time.Time
}

// run brings the tenure up to date: what was held and cannot be is dropped, then what nobody holds is claimed.
func (d *deciding) run() {
	t := &d.tenure
	if len(d.holders) > 0 {
		t.last = d.holders[0].node
	}
	if t.barred != "" && (!d.answersUnheard(t.barred) || d.hearsOthers()) {
		t.barred = ""
	}
	if t.held {
		if why := d.drops(); why != "" {
			*t = tenure{moved: why, at: d.now, last: t.last, barred: t.barred, parted: t.parted}
		} else {
			d.handOver()
		}
	}
	d.noteRivals()
	d.noteEmpty()
	if !t.held && d.may() && t.barred == "" {
		if d.told() { // it would give up again what it took
			t.barred = d.vip.Holder
		} else {
			d.gain()
		}
	}
	t.reported = t.held && (t.reported || d.vip.Holder == d.self)
}

// may tells whether this node is a candidate.
func (d *deciding) may() bool { return slices.Contains(d.candidates, d.self) }

// noteEmpty notes since when nobody answers. An observer does not know.
func (d *deciding) noteEmpty() {
	switch t := &d.tenure; {
	case t.held || len(d.holders) > 0 || d.view.Members.Observer:
		t.empty = time.Time{}
	case t.empty.IsZero():
		t.empty = d.now
	}
}

// drops returns why this node stops answering at once, empty if it does not (rules 4, 5 and 6).
func (d *deciding) drops() Reason {
	if d.hard != Owner {
		return d.hard
	}
	if d.told() {
		d.tenure.barred = d.vip.Holder
		return Yielded
	}
	newer, deaf, yields := false, false, false
	for _, h := range d.holders {
		switch {
		case h.returned: // it may have been paused, and gives up everything then
		case d.tenure.successor != "" && h.claim.State == Held:
			if d.soft == PartlyIsolated {
				return PartlyIsolated
			}
			return HandedOver
		case d.tenure.successor != "":
			if h.claim.Successor != d.self && d.comesFirst(h) { // both ask somebody
				return HandedOver
			}
		case h.claim.State == Leaving: // it goes by itself when it hears of this one
		case h.deaf && !d.comesFirst(h):
			deaf, yields = true, d.yieldsTo(h) || yields
		case h.claim.Generation > d.vip.Generation:
			newer = true
		case d.comesFirst(h):
			return Yielded
		}
	}
	since(&d.tenure.unheard, deaf, d.now)
	since(&d.tenure.contested, newer, d.now)
	if d.deaf != "" && d.waits(d.tenure.unheard.Add(contest*d.interval), Owner) == "" {
		d.deaf = "" // it may have begun to hear this node just now
	}
	if yields && d.waits(d.tenure.unheard.Add(deafWait), Yielded) != "" {
		return Yielded
	}
	if newer {
		return d.waits(d.tenure.contested.Add(contest*d.interval), Yielded)
	}
	return ""
}

// since keeps the time since when something is so.
func since(at *time.Time, is bool, now time.Time) {
	if !is {
		*at = time.Time{}
	} else if at.IsZero() {
		*at = now
	}
}

// comesFirst tells whether another holder comes before this node: in the list that both go by, or in this node's newer one.
func (d *deciding) comesFirst(h holder) bool {
	place := h.claim.Place
	if h.claim.Generation != d.vip.Generation {
		place = placeOf(d.vip.Nodes, h.node)
	}
	return cmp.Or(cmp.Compare(place, placeOf(d.vip.Nodes, d.self)), cmp.Compare(h.node, d.self)) < 0
}

// waits returns the reason once the time has come.
func (d *deciding) waits(until time.Time, then Reason) Reason {
	if !d.now.Before(until) {
		return then
	}
	d.wake = earlier(d.wake, until)
	return ""
}

// handOver asks another node to take over what this one holds, if it should not hold it, and goes on answering until that
// one does (rule 5).
func (d *deciding) handOver() {
	t := &d.tenure
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
	if next < 0 && d.soft == Owner && !d.requested() { // nobody took it: that is settled
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

// requested reports whether the status names this node. A list that comes then was written by one who knew that it
// holds: the nodes that it puts first are asked for, now and as soon as they can be had. Any other list may be older
// than the holder.
func (d *deciding) requested() bool { return d.vip.Holder == d.self }

// readRequest opens a request: a list that is newer than the one with which the status came to name this node.
func (d *deciding) readRequest() {
	switch t := &d.tenure; {
	case !d.requested():
	case t.named == 0:
		t.named = d.vip.Generation
	case d.vip.Generation > t.named:
		t.named, t.before = d.vip.Generation, nil
	}
}

// settled returns the nodes before this one in the list that are not to be asked to take over. A request stays open.
func (d *deciding) settled() []string {
	nodes := before(d.vip.Nodes, d.self)
	if !d.requested() {
		return nodes
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return !slices.Contains(d.tenure.before, n) })
}

// targets returns who may be asked to take over: every candidate if this node should not hold it at all, and else those before
// it in the list, if the list puts one there that was not when this node took it.
func (d *deciding) targets() []string {
	var out []string
	newly := false
	for _, n := range d.candidates {
		if n == d.self && d.soft == Owner {
			break
		}
		if n != d.self && !d.observers[n] {
			out = append(out, n)
			newly = newly || !slices.Contains(d.tenure.before, n)
		}
	}
	if d.soft == Owner && !newly {
		return nil
	}
	return out
}

// gain claims what nobody else answers for, when it is this node's turn (rule 3), or what its holder wants to give (rule 5).
func (d *deciding) gain() {
	for _, h := range d.holders {
		if h.claim.State == Held {
			return
		}
	}
	for _, h := range d.holders {
		if h.claim.Successor == d.self {
			d.take(TakenOver)
			return
		}
	}
	if len(d.holders) > 0 {
		return
	}
	wait := time.Duration(d.turn()) * claimWait
	if d.unsure {
		wait += claimWait
	}
	if d.waits(d.tenure.empty.Add(wait), Owner) == "" {
		return
	}
	switch {
	case d.tenure.last != "":
		d.take(OwnerLost)
	case d.vip.Holder == d.self:
		d.take(Restarted)
	case d.vip.Holder != "":
		d.take(OwnerLost)
	default:
		d.take(FirstUse)
	}
}

// turn is how many candidates come before this node where nobody answers: those before it in the list, but first of all the node
// that the status names, whose speaker may have been restarted.
func (d *deciding) turn() int {
	turn := slices.Index(d.candidates, d.self)
	if d.partial { // nobody reaches all networks, and those who do not say that they decline
		for _, n := range before(d.vip.Nodes, d.self) {
			if d.heard(n) && !slices.Contains(d.candidates, n) {
				turn++
			}
		}
	}
	switch held := slices.Index(d.candidates, d.vip.Holder); {
	case held == turn:
		return 0
	case held > turn:
		return turn + 1
	}
	return turn
}

func (d *deciding) take(why Reason) {
	t := d.tenure
	d.tenure = tenure{
		held: true, moved: why, at: d.now, vacant: t.empty,
		probe: d.vip.Holder == "" && why != TakenOver, before: before(d.vip.Nodes, d.self), last: t.last,
		parted: t.parted,
	}
	if why == OwnerLost || why == TakenOver {
		d.tenure.from = cmp.Or(t.last, d.vip.Holder)
	}
}

// claim is what this node says of the VirtualIP, and whether it says anything.
func (d *deciding) claim() (Claim, bool) {
	place := placeOf(d.vip.Nodes, d.self)
	c := Claim{State: Held, Generation: d.vip.Generation, Place: place}
	switch {
	case d.tenure.held && d.tenure.successor != "":
		c.State, c.Successor = Leaving, d.tenure.successor
	case d.tenure.held:
	case place == unlisted || d.may() && !d.partial && d.tenure.barred == "" || d.passing():
		return Claim{}, false
	default:
		c.State = Declined
	}
	return c, true
}

// passing tells whether what keeps this node from answering may be over in a moment: it has not heard the others yet, or its
// Services come late. The others wait for it then.
func (d *deciding) passing() bool {
	return d.hard == Observer || d.hard == NoService || d.hard == Isolated && d.tenure.moved != Isolated
}

// placeOf returns the place of a node in the list.
func placeOf(nodes []string, node string) uint16 {
	if i := slices.Index(nodes, node); i >= 0 {
		return uint16(min(i, unlisted-1))
	}
	return unlisted
}

// before returns the nodes of the list that come before one.
func before(nodes []string, node string) []string {
	if i := slices.Index(nodes, node); i >= 0 {
		return nodes[:i]
	}
	return nodes
}

// earlier returns the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
