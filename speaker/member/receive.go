package member

import (
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// Drop is the reason why a datagram was dropped.
type Drop string

// The reasons, as in the metric label.
const (
	Accepted    Drop = ""
	DropForm    Drop = "malformed"
	DropVersion Drop = "version"
	DropCluster Drop = "other-cluster"
	DropKey     Drop = "unknown-key"
	DropTag     Drop = "wrong-tag"
	DropOwn     Drop = "own"         // sent by this process
	DropName    Drop = "same-name"   // another process has this node's name
	DropRepeat  Drop = "repeated"    // already received by this path
	DropOld     Drop = "old"         // of an earlier incarnation, or beyond the accepted lag
	DropEnded   Drop = "after-ended" // sent before the goodbye, received after it
)

// Drops are all reasons.
var Drops = []Drop{DropForm, DropVersion, DropCluster, DropKey, DropTag, DropOwn, DropName, DropRepeat, DropOld, DropEnded}

// maxReorder is the sequence lag accepted behind another path's newest datagram, for at most half a dead time; beyond
// it a datagram is a replay.
const maxReorder = 1 << 13

// maxReported is the sequence lag from which a datagram shows nothing of other nodes.
const maxReported = 64

// Receive handles a received datagram. now and raw are the times of its arrival; those of different paths may arrive in
// any order.
func (c *Core) Receive(now time.Time, raw time.Duration, in Packet) Drop {
	c.count.Received++
	drop := c.receive(now, raw, in, false)
	if drop == Accepted && c.msg.passedOn != nil && c.msg.flags&flagEnded == 0 {
		in.Data = c.msg.passedOn
		c.receive(now, raw, in, true)
	}
	return drop
}

// receive handles a datagram that arrived from its sender, or that another node has passed on.
func (c *Core) receive(now time.Time, raw time.Duration, in Packet, passedOn bool) Drop {
	h, body, err := parseHeader(in.Data)
	switch {
	case err == errVersion:
		return DropVersion
	case err != nil:
		return DropForm
	case h.cluster != c.cluster:
		return DropCluster
	}
	own := string(h.name) == c.config.Node
	if own && h.incarnation <= c.incarnation {
		return DropOwn
	}
	at, known := 0, true
	if in.OnLink {
		at, known = c.findIface(in.Iface)
	}
	p := c.peers[string(h.name)]
	same := p != nil && h.incarnation == p.incarnation
	if same && h.sequence <= p.newest && (h.sequence+maxReorder < p.newest || now.Sub(p.newestAt) > c.profile.Dead/2) {
		return DropOld
	}
	k := c.ring.find(h.keyID)
	if k == nil {
		return DropKey
	}
	if !c.ring.valid(k, in.Data) { // nothing changes before
		return DropTag
	}
	switch {
	case passedOn && (p == nil || same && !p.passed.fresh(h.sequence)):
		return DropRepeat
	case same && !passedOn:
		switch { // also where it repeats another on the same interface
		case !in.Group:
			p.arrivesByUnicast(now, in)
		case known:
			w := &p.paths[at]
			if w.group = later(w.group, now); in.Source.Is4() {
				w.group4 = later(w.group4, now)
			}
		}
		if known && !p.paths[at].window.fresh(h.sequence) {
			return DropRepeat
		}
	}
	if err := c.msg.parse(body); err != nil {
		return DropForm
	}
	c.msg.sequence = h.sequence
	if c.foreign(&c.msg) {
		return DropCluster
	}
	if own {
		return DropName
	}
	if p == nil {
		p = c.peer(string(h.name))
	}
	if p.incarnation == 0 {
		p.unproved = true
	}
	switch {
	case h.incarnation < p.incarnation:
		if !passedOn {
			p.newerThan, p.newerTo = p.incarnation, in.Source
		}
		return DropOld
	case h.incarnation > p.incarnation:
		c.processReplaced(now, p, h.incarnation)
	case p.ended:
		return DropEnded
	}
	if !known { // an unknown sender or a replay creates no entry
		at = c.iface(in.Iface)
	}
	latest := h.sequence > p.newest
	if latest {
		p.newest, p.newestAt = h.sequence, now
	}
	if !passedOn {
		c.arrives(now, p, at, in, h.sequence)
	} else {
		p.passed.add(h.sequence)
	}
	c.processMessage(now, raw, p, at, latest, passedOn)
	if !passedOn && !p.unproved {
		c.passOn(now, p, in.Data)
	}
	c.peerChanged(p)
	return Accepted
}

// arrives records the path and the source of a datagram.
func (c *Core) arrives(now time.Time, p *peer, at int, in Packet, sequence uint64) {
	w := &p.paths[at]
	w.window.add(sequence)
	p.from, p.arrived = in.Source, later(p.arrived, now)
	if in.Group || !w.byGroup {
		w.from, w.byGroup = in.Source, in.Group
	}
	for _, a := range p.addrs {
		if a == in.Source {
			p.internal = later(p.internal, now)
			c.ifaces[0].ever, c.ifaces[0].last = true, later(c.ifaces[0].last, now)
		}
	}
}

// arrivesByUnicast records a datagram that was not sent to a group.
func (p *peer) arrivesByUnicast(now time.Time, in Packet) {
	p.unicast = later(p.unicast, now)
	for i, a := range p.addrs {
		if a == in.Source {
			p.sources[i] = source{later(p.sources[i].received, now), in.Iface}
		}
	}
}

// restarted discards what an earlier process of the node sent.
func (c *Core) restarted(p *peer, incarnation uint64) {
	for id := range p.claims.claims {
		c.out.vip(id)
	}
	for id := range p.retainedClaims {
		c.out.vip(id)
	}
	p.incarnation, p.newest, p.ended, p.died, p.claims = incarnation, 0, false, false, replica{}
	p.heartbeat, p.passed = 0, window{}
	p.clock, p.hasSlots = clock{}, false
	p.tries, p.retainedUntil, p.retainedClaims, p.away, p.returned = 0, time.Time{}, nil, false, time.Time{}
	for i := range p.paths {
		w := &p.paths[i]
		w.window, w.asymmetric, w.lost, w.none, w.noneAt, w.oneWay = window{}, false, false, false, time.Time{}, false
		w.relayRequested = time.Time{}
	}
	c.out.node(p)
}

// processMessage processes the message in c.msg. A node's own state counts only if no newer datagram arrived by another
// path. A message that was passed on shows the node's state and requests, not that this node receives it.
func (c *Core) processMessage(now time.Time, raw time.Duration, p *peer, at int, latest, passedOn bool) {
	m := &c.msg
	if m.flags&flagEnded != 0 {
		c.handleGoodbye(now, p, m.retained)
		return
	}
	if !passedOn {
		if p.away { // its process was starved, not absent
			p.away = false
			c.out.node(p)
		}
		c.recordReception(now, p, at)
	}
	if p.unproved || p.newest-m.sequence >= maxReported { // a recording shows nothing of others
		m.relays, m.passedOn = m.relays[:0], nil
	}
	changed := func(id view.VIPID) {
		p.decided(id)
		c.out.vip(id)
		c.out.node(p)
	}
	was := p.synced()
	if latest {
		if p.flags != m.flags {
			p.flags = m.flags
			c.out.node(p)
		}
		if m.flags&(flagDirect|flagNotDirect) != 0 {
			p.direct, p.directIPv4Only = m.flags&flagDirect != 0, m.flags&flagDirectIPv4 != 0
		}
		if m.hasSlots {
			p.slots, p.hasSlots = m.slots, true
		}
		if m.flags&flagRetained == 0 {
			c.release(p)
		}
		p.dead = min(m.dead, time.Minute)
		p.claims.advertisedVersion, p.claims.advertisedDigest = m.version, m.digest
	}
	if m.hasSegments && m.sequence > p.heartbeat { // the claims after it may have arrived before
		p.heartbeat = m.sequence
		c.recordAsymmetry(p)
		c.setSegments(p, m.segments)
		c.recordOneWay(now, p)
	}
	if m.hasRan && c.begun && !passedOn {
		c.clocks(now, p, m.ran, raw-c.began)
	}
	if m.hasClaims {
		before := p.claims.next()
		p.claims.apply(m.after, m.upTo, m.entries, changed)
		if p.claims.next() > before {
			p.claimsRequested, p.tries = time.Time{}, 0
		}
	}
	p.claims.reconcile(changed)
	if is := p.synced(); is != was {
		c.out.node(p)
	} else if !is && p.claimsRequested.IsZero() {
		c.urgent = true
	}
	c.handleRequests(now, p)
}

// handleRequests handles the node's requests and answers.
func (c *Core) handleRequests(now time.Time, p *peer) {
	m := &c.msg
	if m.hasChallenge && m.challenge.node == c.self {
		p.proves, c.urgent = m.challenge.segment, true
	}
	if m.hasWant && m.want.of == c.self {
		p.wants, p.wantsAfter, p.wantsGroup, c.urgent = true, m.want.after, m.want.byGroup, true
	}
	for _, a := range m.relayRequests {
		c.answerRelayRequest(now, p, a, !p.unproved)
	}
	if q := c.byID[m.missed.segment]; q != nil && m.missed.node == c.self && !p.unproved {
		for i := range c.ifaces {
			if i == 0 || c.ifaces[i].link {
				c.answerRelayRequest(now, q, about{p.id, c.ifaces[i].keyFor(q)}, true)
			}
		}
	}
	for _, s := range m.relays {
		c.recordRelay(now, s)
	}
	if m.hasNewer && m.newer.to == c.self && m.newer.incarnation > c.incarnation { // else the sender got a replay
		c.incarnation, c.sequence, c.heartbeatNow = m.newer.incarnation+1, 0, true
	}
}

// recordReception records that the node was just received on an interface.
func (c *Core) recordReception(now time.Time, p *peer, at int) {
	if p.unproved = p.unproved && (!c.msg.hasProof || c.msg.proof != about{c.self, c.config.Nonce}); p.unproved {
		c.urgent = c.urgent || now.Sub(p.challenged) >= c.profile.Interval
		return
	}
	if p.first.IsZero() {
		p.first = now
		c.out.node(p)
	}
	if p.died {
		p.died = false
		c.count.FalseDeaths++
		c.returns(p, at)
		p.returned, c.heartbeatNow = now, true
	} else if p.givenUp || at > 0 && p.paths[at].lost { // the node network was not interrupted
		c.returns(p, at)
	}
	p.givenUp = false
	c.markReceived(now, p, 0)
	if at == 0 {
		return
	}
	f := &c.ifaces[at]
	if f.last.IsZero() || now.Sub(f.last) >= c.profile.Dead {
		f.first = now
	}
	if f.link && !f.ever {
		f.ever, f.never = true, false
		for _, q := range c.order { // a node not received on this interface is not on it
			c.out.node(q)
		}
	}
	f.last = later(f.last, now)
	c.steady = earlier(c.steady, f.last.Add(c.profile.Dead/2))
	c.markReceived(now, p, at)
	c.evaluateOneWay(now, p, at) // it may have reported by another path that it receives none here
}

// returns records that a node that was not restarted is received again.
func (c *Core) returns(p *peer, at int) {
	p.paths[at].lost = false
	c.returned++
	c.out.own()
}

func (c *Core) markReceived(now time.Time, p *peer, at int) {
	p.paths[at].received, p.paths[at].byRelay = later(p.paths[at].received, now), false
	if !p.paths[at].up {
		p.paths[at].up = true
		c.out.node(p)
	}
}

// markEnded handles a goodbye: the node counts as dead at once.
func (c *Core) markEnded(p *peer) {
	incarnation := p.incarnation
	c.restarted(p, incarnation)
	p.ended, p.flags = true, flagEnded
	for i := range p.paths {
		p.paths[i].up, p.paths[i].received, p.paths[i].relayed = false, time.Time{}, time.Time{}
	}
	c.out.node(p)
}

// setSegments records the segments of the node, and its hardware address on each.
func (c *Core) setSegments(p *peer, segments []segment) {
	same := len(segments) == len(p.segments)
	for i := 0; same && i < len(segments); i++ {
		same = segments[i].mac == p.segments[i].mac
	}
	p.segments = append(p.segments[:0], segments...)
	if !same {
		c.out.macs = true
	}
}
