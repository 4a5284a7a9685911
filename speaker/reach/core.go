package reach

import (
	"cmp"
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

func (t Target) compare(u Target) int { return cmp.Or(t.Addr.Compare(u.Addr), cmp.Compare(t.By, u.By)) }

// Probe is one probe of a target. Of two probes of a target, the later one has the greater ID.
type Probe struct {
	Target
	ID uint64
}

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

// segment is an interface without a received speaker, with the hosts to ask there.
type segment struct {
	hosts   []*target
	list    func() []Target // lists the hosts again
	listed  time.Time
	answers view.Answers
	began   time.Time // of the silence
	asked   time.Time // an answer counts if its probe was sent since, or if it is of the neighbor table
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
