// Package reach detects the nodes that this node cannot reach, so that no new connection is sent to their endpoints
// (docs/design/unreachable.md).
//
// A speaker that is not received any more is no proof: it may have crashed, or be replaced. So the kernel of that node
// is probed as well, which does not depend on any process of the speaker. A node is unreachable once its speaker is not
// received and its kernel, which answered while the speaker was received, does not answer any more. If this node itself
// may be cut off, its gateways are probed, too.
//
// In: the nodes and their InternalIPs (SetNodes), this node's gateways (SetGateways), and from speaker/member the
// received speakers and the interfaces without any (SetReceived). Out: view.Reachability (State), with Wake on a change.
//
// A Core (core.go) evaluates and does no I/O. A Prober (prober.go) runs it on sockets, with two witnesses (witness.go):
// ICMP echo, and ARP or neighbor discovery by speaker/neighbor.
//
// The intervals and limits may change; how long a decision takes is documented and checked by test/sim. A node must
// never be unreachable by silence alone, without a witness that had answered before, or while this node may be cut off.
package reach

import (
	"cmp"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// Target is an address that is probed in one way.
type Target struct {
	Addr netip.Addr
	By   view.Witness
}

// Probe is one probe of a target. Of two probes of a target, the later one has the greater ID.
type Probe struct {
	Target
	ID uint64
}

// Core evaluates which nodes are unreachable. It has no clock and does no I/O: its owner calls Tick when Next is due,
// and sends the probes that Tick returns.
type Core struct {
	nodes    []*node // by name
	gateways []*target
	// segments are the interfaces without a received speaker.
	segments map[string]*segment
	// pending are the targets of the pending probes, by ID.
	pending  map[uint64]*target
	lastID   uint64
	received map[string]struct{}
	observer bool
	began    time.Time
	next     time.Time
	state    view.Reachability
	due      time.Time // Next after the last Tick
}

// node is another node.
type node struct {
	name     string
	targets  []*target
	received bool
	known    bool      // it has been received since this Core was created
	lost     time.Time // since when it is not received
	// probingSince is since when its answers count: since lost, or since this node was last cut off.
	probingSince time.Time
	// lostWithMost is set if it was lost together with most others: then only a gateway shows that this node is not cut
	// off.
	lostWithMost bool
	unreachable  *view.UnreachableNode // nil while the node is reachable
}

// segment is an interface without a received speaker, with the hosts to ask there.
type segment struct {
	hosts   []*target
	list    func() []Target // lists the hosts again
	listed  time.Time
	answers view.Answers
	began   time.Time // of the silence
	asked   time.Time // an answer counts if its probe was sent since, or if it is of the neighbor table
}

// target is the state of one address of a host with one witness.
type target struct {
	Target
	// pending are the pending probes, oldest first. next is when the next one is due.
	pending []pendingProbe
	next    time.Time
	// sent is the send time of the probe that was answered last; took is the longest recent answer time.
	sent time.Time
	took time.Duration
	// settling is set after an answer that was far slower than the ones before, until took is the usual answer time
	// again: otherwise the next silence would be waited for too long. The end of a cut delivers answers to probes that
	// the kernel had queued.
	settling bool
	// works is set while the target answers in general. misses counts consecutive unanswered probes while the node's
	// speaker is received, silences those while it is not.
	works            bool
	misses, silences int
	quick            int // number of probes since the last restart
}

// pendingProbe is a probe; over is set once it counts as unanswered. A regular one checks whether the target answers in
// general.
type pendingProbe struct {
	id            uint64
	at            time.Time
	regular, over bool
}

func (t Target) compare(u Target) int { return cmp.Or(t.Addr.Compare(u.Addr), cmp.Compare(t.By, u.By)) }

const (
	// A node that is not received any more is probed firstProbes times, fastInterval apart. It is unreachable if none
	// of these is answered within answerWithin, or within four times the recent answer time: 110 ms in a rack. A tick
	// of speaker/member and late timers add to that; the total is 150 ms after the dead time. With 5 % loss in each
	// direction, all six are lost in one of a million cases in which every heartbeat was lost for the dead time.
	firstProbes  = 6
	fastInterval = 10 * time.Millisecond
	answerWithin = 60 * time.Millisecond
	// A node whose kernel answers without its speaker is probed steadyInterval apart, and maxUnanswered consecutive
	// unanswered probes make it unreachable: here there are no heartbeats as a further witness.
	maxUnanswered  = 10
	steadyInterval = 50 * time.Millisecond
	// A node whose speaker has not been received for steadyFor is probed slowInterval apart, as is an unreachable one.
	steadyFor    = 3 * time.Minute
	slowInterval = 500 * time.Millisecond
	// A target of a received node, or of a gateway, is probed checkInterval apart to learn whether it answers, and
	// recheckInterval after an unanswered probe. After maxMisses of these it is no witness, until it answers again.
	checkInterval   = 30 * time.Second
	recheckInterval = time.Second
	maxMisses       = 5
	// While no host on a segment answers, these are listed again relistAfter the last time.
	relistAfter = 10 * time.Second
	// recent plus twice the answer time is the maximum age of an answered probe that shows that this node is not cut
	// off. helpers is how many received nodes are probed for that, in addition to the gateways; maxGateways limits the
	// gateways.
	recent      = 250 * time.Millisecond
	helpers     = 3
	maxGateways = 8
	// slowest is the maximum answer time; later answers do not count.
	slowest = time.Second
	// stall is how late Tick may be. After a longer stall, earlier probes do not count.
	stall = 250 * time.Millisecond
	// lossWindow is the time within which nodes count as lost at once.
	lossWindow = 10 * time.Second
	// unstretched is the number of nodes that the intervals suit; twice as many double them.
	unstretched = 200
)

func newState() view.Reachability {
	return view.Reachability{
		Unreachable: map[string]view.UnreachableNode{}, Unwitnessed: map[string]struct{}{}, Silent: map[string]view.Answers{},
	}
}

func equal(s, t view.Reachability) bool {
	return s.CutOff == t.CutOff && maps.Equal(s.Unwitnessed, t.Unwitnessed) && maps.Equal(s.Silent, t.Silent) &&
		maps.EqualFunc(s.Unreachable, t.Unreachable, view.UnreachableNode.Equal)
}

// NewCore returns a Core without nodes. It finds no node unreachable before SetReceived.
func NewCore() *Core {
	return &Core{observer: true, pending: map[uint64]*target{}, segments: map[string]*segment{}, received: map[string]struct{}{}, state: newState()}
}

// SetNodes sets the other nodes, and the targets of each.
func (c *Core) SetNodes(now time.Time, nodes map[string][]Target) {
	before := map[string]*node{}
	for _, n := range c.nodes {
		before[n.name] = n
	}
	c.nodes = nil
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := before[name]
		if n == nil {
			_, received := c.received[name]
			n = &node{name: name, received: received, known: received, lost: now, probingSince: now}
		}
		worked := len(n.witnesses()) > 0
		if n.targets = c.retarget(now, n.targets, nodes[name]); worked && len(n.witnesses()) == 0 {
			// It has other addresses, with unknown state.
			n = &node{name: name, received: n.received, known: n.received, lost: now, probingSince: now, targets: n.targets}
		}
		c.nodes = append(c.nodes, n)
		delete(before, name)
	}
	for _, n := range before {
		c.retarget(now, n.targets, nil)
	}
	c.next = now
}

// SetGateways sets the hosts whose answers show that this node is not cut off.
func (c *Core) SetGateways(now time.Time, gateways []Target) {
	gateways = gateways[:min(len(gateways), 2*maxGateways)]
	c.gateways, c.next = c.retarget(now, c.gateways, gateways), now
}

// SetSilent sets the interfaces on which no speaker is received, with the beginnings of the silence. hosts returns the
// hosts on an interface that have answered before. Once none of these has answered firstProbes probes, this node is cut
// off there until one answers.
func (c *Core) SetSilent(now time.Time, silent map[string]time.Time, hosts func(name string) []Target) {
	for name, s := range c.segments {
		if began, still := silent[name]; !still || !began.Equal(s.began) {
			c.retarget(now, s.hosts, nil)
			delete(c.segments, name)
		}
	}
	for name, began := range silent {
		if c.segments[name] == nil {
			list := func() []Target { return hosts(name) }
			s := &segment{hosts: c.retarget(now, nil, list()), list: list, listed: now, began: began, asked: now}
			if len(s.hosts) == 0 {
				s.answers.First = now
			}
			c.segments[name] = s
		}
	}
	c.next = now
}

// decideSegment updates the answers. A stall, after which each host has firstProbes again, changes nothing. Hosts that
// have left are replaced by others that answer now: a node may be the only one for days.
func (c *Core) decideSegment(now time.Time, s *segment) {
	silent := len(s.hosts) > 0
	for _, t := range s.hosts {
		if !t.sent.IsZero() && !t.sent.Before(s.asked) {
			s.answers.None = false
			if s.answers.First.IsZero() {
				s.answers.First = t.sent
			}
		}
		silent = silent && t.silences >= firstProbes
	}
	if silent && now.Sub(s.listed) >= relistAfter {
		s.listed = now
		if others := s.list(); len(others) > 0 {
			s.hosts = c.retarget(now, s.hosts, others)
			return
		}
	}
	if silent && !s.answers.None {
		s.answers.None, s.asked = true, now
	}
}

// retarget returns the wanted targets in order; existing ones keep their state.
func (c *Core) retarget(now time.Time, have []*target, want []Target) (out []*target) {
	want = slices.Clone(want)
	slices.SortFunc(want, Target.compare)
	for _, t := range slices.Compact(want) {
		if i := slices.IndexFunc(have, func(h *target) bool { return h.Target == t }); i >= 0 {
			out = append(out, have[i])
		} else {
			out = append(out, &target{Target: t, next: now})
		}
	}
	for _, t := range have {
		if !slices.Contains(out, t) {
			c.drop(t)
		}
	}
	return out
}

// SetReceived sets the nodes whose speakers are received. While observer is set, that is not reliable enough to act on.
// The map must not change afterwards.
func (c *Core) SetReceived(now time.Time, received map[string]struct{}, observer bool) {
	c.received, c.observer, c.next = received, observer, now
	lost := false
	for _, n := range c.nodes {
		_, is := received[n.name]
		if n.received && !is {
			n.lost, n.probingSince, n.lostWithMost, lost = now, now, false, true
			c.restart(now, n.targets)
		}
		n.received, n.known = is, n.known || is
	}
	if lost {
		c.probeHosts(now)
	}
}

// probeHosts starts probing at once whether this node is cut off.
func (c *Core) probeHosts(now time.Time) {
	c.restart(now, c.gateways)
	for _, n := range c.helpers() {
		for _, t := range n.targets {
			t.next, t.quick = now, 0
		}
	}
}

// helpers returns up to helpers received nodes whose kernels answer, spread over all of these.
func (c *Core) helpers() (out []*node) {
	for _, n := range c.nodes {
		if n.received && len(n.witnesses()) > 0 {
			out = append(out, n)
		}
	}
	if len(out) > helpers {
		out = []*node{out[0], out[len(out)/2], out[len(out)-1]}
	}
	return out
}

// Unsent cancels a probe that could not be sent.
func (c *Core) Unsent(q Probe) {
	if t := c.pending[q.ID]; t != nil {
		delete(c.pending, q.ID)
		t.pending = slices.DeleteFunc(t.pending, func(a pendingProbe) bool { return a.id == q.ID })
	}
}

// Answered records an answer that arrived at the given time. It is ignored once a Tick, a second after the probe, has
// discarded that probe.
func (c *Core) Answered(at time.Time, q Probe) {
	if t := c.pending[q.ID]; t != nil && t.Target == q.Target {
		c.next = at
		for _, id := range t.answer(at, q.ID) {
			delete(c.pending, id)
		}
	}
}

// Next returns when Tick is due.
func (c *Core) Next() time.Time { return c.next }

// State returns the current result. It does not change afterwards.
func (c *Core) State() view.Reachability { return c.state }

// Tick evaluates the state and returns the probes to send now. All answers that have arrived must have been passed to
// Answered before.
func (c *Core) Tick(now time.Time) []Probe {
	if c.began.IsZero() {
		c.began = now
	} else if now.Sub(c.due) > stall {
		c.stalled(now)
	}
	for _, n := range c.nodes {
		for _, t := range n.targets {
			c.expire(now, t, n.received)
		}
	}
	for _, t := range c.gateways {
		c.expire(now, t, false)
	}
	for _, s := range c.segments {
		for _, t := range s.hosts {
			c.expire(now, t, false)
		}
	}
	c.decide(now)
	probes := c.dueProbes(now)
	c.due = c.next
	return probes
}

// stalled discards probes from before a stall: their answers may be lost.
func (c *Core) stalled(now time.Time) {
	for _, n := range c.nodes {
		if !n.received {
			c.restart(now, n.targets)
			continue
		}
		for _, t := range n.targets {
			c.drop(t)
		}
	}
	c.restart(now, c.gateways)
	for _, s := range c.segments {
		c.restart(now, s.hosts)
	}
}

// decide updates the state.
func (c *Core) decide(now time.Time) {
	state := newState()
	suspect := c.maybeCutOff(now)
	for _, n := range c.nodes {
		n.lostWithMost = !n.received && !n.answers() && (n.lostWithMost || suspect && n.unreachable == nil)
	}
	if c.state.CutOff && slices.ContainsFunc(c.nodes, func(n *node) bool {
		return n.known && n.unreachable == nil && n.silent() && c.connectedSince(now, time.Time{}, n)
	}) {
		c.reconnected(now)
	}
	for _, n := range c.nodes {
		if !n.known {
			continue
		}
		if n.unreachable != nil {
			n.returns()
		} else if n.silent() && !c.observer {
			if !c.connectedSince(now, n.probingSince, n) {
				state.CutOff = true
			} else {
				n.unreachable = &view.UnreachableNode{Since: now, Silent: n.witnesses()}
				if n.lostWithMost {
					n.unreachable.Gateway = c.gatewaySince(now, n.probingSince)
				}
			}
		}
		if n.unreachable != nil {
			state.Unreachable[n.name] = *n.unreachable
		} else if n.unwitnessed() {
			state.Unwitnessed[n.name] = struct{}{}
		}
	}
	for name, s := range c.segments {
		c.decideSegment(now, s)
		state.Silent[name] = s.answers
	}
	if !equal(c.state, state) {
		c.state = state
	}
}

// maybeCutOff reports whether this node reaches no other one, or more than half of them were lost at once: then the
// cause may be on its own side.
func (c *Core) maybeCutOff(now time.Time) bool {
	reached, vanished := 0, 0
	for _, n := range c.nodes {
		switch {
		case !n.known:
		case n.received || n.answers():
			reached++
		case now.Sub(n.lost) < lossWindow:
			vanished++
		}
	}
	return reached == 0 || vanished > reached+1 // including this node
}

// connectedSince reports whether this node is connected, for the evaluation of one node: another host answered a recent
// probe that was sent after at.
func (c *Core) connectedSince(now, at time.Time, about *node) bool {
	if c.gatewaySince(now, at).IsValid() {
		return true
	}
	return !about.lostWithMost && slices.ContainsFunc(c.nodes, func(n *node) bool {
		return n != about && slices.ContainsFunc(n.targets, func(t *target) bool { return t.answeredSince(now, at) })
	})
}

// gatewaySince returns a gateway that answered a recent probe sent after at; not valid if there is none.
func (c *Core) gatewaySince(now, at time.Time) netip.Addr {
	for _, g := range c.gateways {
		if g.answeredSince(now, at) {
			return g.Addr
		}
	}
	return netip.Addr{}
}

// reconnected probes again the nodes that were silent while this one was cut off: the path to some hosts may recover
// before the path to others.
func (c *Core) reconnected(now time.Time) {
	for _, n := range c.nodes {
		if n.known && !n.received && n.unreachable == nil {
			n.probingSince = now
			c.restart(now, n.targets)
		}
	}
	c.probeHosts(now)
}

// witnesses returns which of the node's witnesses have answered, each once, in order.
func (n *node) witnesses() (out []view.Witness) {
	for _, t := range n.targets {
		if t.works {
			out = append(out, t.By)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// unwitnessed reports whether no target of the node answers; that takes some probes to learn.
func (n *node) unwitnessed() bool {
	return !slices.ContainsFunc(n.targets, func(t *target) bool { return t.works || n.received && t.misses < maxMisses })
}

// answers reports whether the node's kernel has answered since probingSince, and is not silent since.
func (n *node) answers() bool {
	return !n.received && !n.silent() && n.answeredSince(n.probingSince)
}

func (n *node) answeredSince(at time.Time) bool {
	return slices.ContainsFunc(n.targets, func(t *target) bool { return !t.sent.IsZero() && !t.sent.Before(at) })
}

// silent reports whether the node is not received, and each of its witnesses leaves probes unanswered.
func (n *node) silent() bool {
	least, witnessed := firstProbes, false
	if n.answeredSince(n.probingSince) {
		least = maxUnanswered
	}
	for _, t := range n.targets {
		if t.works && t.silences < least {
			return false
		}
		witnessed = witnessed || t.works
	}
	return witnessed && !n.received
}

// returns makes a node reachable once it is received or answers.
func (n *node) returns() {
	if n.received || !n.silent() && n.answeredSince(n.unreachable.Since) {
		n.unreachable = nil
	}
}

// answeredSince reports whether a recent probe that was sent after at was answered.
func (t *target) answeredSince(now, at time.Time) bool {
	return t.sent.After(at) && now.Sub(t.sent) < recent+2*t.took
}

// answer records an answer, and returns the IDs of the probes that are no longer pending.
func (t *target) answer(now time.Time, id uint64) (done []uint64) {
	for i, a := range t.pending {
		done = append(done, a.id)
		if a.id == id {
			last, before := max(now.Sub(a.at), 0), t.took
			t.took = max(last, before/2)
			t.settling = t.within() > answerWithin && (last < t.took || last > 2*before)
			t.sent, t.works, t.misses, t.silences = a.at, true, 0, 0
			t.pending = t.pending[i+1:]
			return done
		}
	}
	return nil
}

// within is the answer time after which a probe counts as unanswered.
func (t *target) within() time.Duration { return min(max(answerWithin, 4*t.took), slowest) }

// expire counts the probes that were not answered in time.
func (c *Core) expire(now time.Time, t *target, received bool) {
	for i := range t.pending {
		a := &t.pending[i]
		if a.over || now.Sub(a.at) < t.within() {
			continue
		}
		switch a.over = true; {
		case !received:
			t.silences++
		case a.regular:
			t.misses++
			t.works = t.works && t.misses < maxMisses
		}
	}
	for len(t.pending) > 0 && t.pending[0].over && now.Sub(t.pending[0].at) >= slowest {
		delete(c.pending, t.pending[0].id)
		t.pending = t.pending[1:]
	}
}

// restart discards earlier probes, and makes the next ones due at once.
func (c *Core) restart(now time.Time, targets []*target) {
	for _, t := range targets {
		c.drop(t)
		t.next, t.quick, t.silences = now, 0, 0
	}
	c.next = now
}

// drop discards the pending probes of a target.
func (c *Core) drop(t *target) {
	for _, a := range t.pending {
		delete(c.pending, a.id)
	}
	t.pending = nil
}

// dueProbes returns the probes that are due, and sets the time of the next Tick.
func (c *Core) dueProbes(now time.Time) (out []Probe) {
	c.next = now.Add(time.Minute)
	by := time.Duration(1 + max(0, len(c.nodes)-1)/unstretched)
	if since := c.undecided(); !since.IsZero() {
		hosts := slices.Clone(c.gateways)
		for _, n := range c.helpers() {
			hosts = append(hosts, n.targets...)
		}
		for _, t := range hosts {
			every := t.soon(by)
			if now.Sub(since) > steadyFor {
				every = by * slowInterval
			}
			out = c.probeTarget(now, t, every, false, out)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.segments)) {
		for _, t := range c.segments[name].hosts {
			every := recheckInterval
			if t.quick < firstProbes || t.silences > 0 && t.silences < firstProbes {
				every = fastInterval
			}
			out = c.probeTarget(now, t, every, false, out)
		}
	}
	for _, n := range c.nodes {
		for _, t := range n.targets {
			if every := n.every(now, t, by); every > 0 {
				out = c.probeTarget(now, t, every, n.received, out)
			}
		}
	}
	return out
}

// undecided returns since when the most recently lost node that may become unreachable is probed; zero if there is
// none.
func (c *Core) undecided() (since time.Time) {
	for _, n := range c.nodes {
		if n.known && !n.received && n.unreachable == nil && !n.answers() && !n.unwitnessed() && n.probingSince.After(since) {
			since = n.probingSince
		}
	}
	return since
}

// every returns the interval between probes of a target of the node, 0 for none.
func (n *node) every(now time.Time, t *target, by time.Duration) time.Duration {
	switch {
	case !n.known:
		return 0
	case n.received && (t.misses > 0 || !t.works) && t.misses < maxMisses:
		return recheckInterval
	case n.received && t.settling:
		return by * steadyInterval
	case n.received:
		return by * checkInterval
	case !t.works:
		return 0
	case t.By == view.WitnessNeighbor && t.quick >= firstProbes && n.unreachable == nil && n.echoes():
		return 0 // one witness is enough while it answers
	case n.unreachable != nil || now.Sub(n.probingSince) > steadyFor:
		return by * slowInterval
	}
	return t.soon(by)
}

// echoes reports whether the node has answered ICMP echo since probingSince, and is not silent since.
func (n *node) echoes() bool {
	return slices.ContainsFunc(n.targets, func(t *target) bool {
		return t.By == view.WitnessEcho && t.works && t.silences == 0 && !t.sent.Before(n.probingSince)
	})
}

// soon returns the interval between probes whose answers decide on reachability.
func (t *target) soon(by time.Duration) time.Duration {
	if t.quick < firstProbes {
		return fastInterval
	}
	return by * steadyInterval
}

// probeTarget adds a probe if it is due; a regular one checks whether the target answers in general.
func (c *Core) probeTarget(now time.Time, t *target, every time.Duration, regular bool, out []Probe) []Probe {
	// A shorter interval takes effect at once, a longer one after the next probe.
	if t.next = earlier(t.next, now.Add(every)); !t.next.After(now) {
		c.lastID++
		out = append(out, Probe{Target: t.Target, ID: c.lastID})
		t.pending = append(t.pending, pendingProbe{id: c.lastID, at: now, regular: regular})
		c.pending[c.lastID] = t
		t.quick++
		if t.next = now.Add(every); every >= checkInterval {
			t.next = c.slot(now, t, every)
		}
	}
	c.next = earlier(c.next, t.next)
	for _, a := range t.pending {
		if !a.over {
			c.next = earlier(c.next, a.at.Add(t.within()))
		}
	}
	return out
}

// slot returns when the next regular probe of a target is due. Regular probes are spread over the period, full seconds
// apart, so that one Tick sends all that are due in a second.
func (c *Core) slot(now time.Time, t *target, period time.Duration) time.Time {
	h := fnv.New32a()
	h.Write(t.Addr.AsSlice())
	slot := time.Duration(h.Sum32()%uint32(period/time.Second)) * time.Second
	next := c.began.Add(now.Sub(c.began).Truncate(period) + slot)
	if !next.After(now) {
		next = next.Add(period)
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
