package member

import (
	"encoding/binary"
	"slices"
	"time"
)

const (
	// answersPerTurn is how many datagrams of claims a node gets on one request before it has to ask for more.
	answersPerTurn = 16
	// changesPerBeat is how many datagrams of changed claims a beat sends to everybody; the rest is asked for.
	changesPerBeat = 4
	// repeatsPerBeat is how many datagrams of claims a beat has of a node that hears nobody.
	repeatsPerBeat = 2
	// groupAfter is how many requests for claims are sent without an answer before they go to the group.
	groupAfter = 3
)

// minorGroup is the first minor version whose speakers receive the group. Earlier ones receive broadcasts alone.
const minorGroup = 3

// joins reports whether the sender of a datagram receives the group.
func joins(datagram []byte) bool { return datagram[2]&0xf >= minorGroup }

// compose writes what is to be sent: a beat if it is time, and requests and answers. ran is how long this process has
// run.
func (c *Core) compose(now time.Time, ran time.Duration) {
	if c.beatNow || !now.Before(c.nextBeat) {
		c.beat(now, ran)
	}
	c.beatNow, c.urgent = false, false
	for _, p := range c.order {
		c.converse(now, p)
	}
}

// beat says to everybody what this node is and hears, and which claims have changed in the last three beats.
func (c *Core) beat(now time.Time, ran time.Duration) {
	// The beats of many nodes must not fall into step.
	c.nextBeat = now.Add(c.profile.Interval - time.Duration(c.random.Int64N(int64(c.profile.Interval/10))))
	version := c.recent[len(c.recent)-1]
	copy(c.recent[1:], c.recent[:])
	c.recent[0] = c.mine.version
	most, alone := changesPerBeat, c.hearsNobody()
	if alone {
		if version, most = c.repeated, repeatsPerBeat; version >= c.mine.version {
			version = 0
		}
	}
	for i := 0; i == 0 || i < most && version < c.mine.version; i++ {
		b := c.appendHello(c.begin(), 0)
		if i == 0 {
			b = c.appendSilent(c.appendSegments(appendRan(b, ran), now))
		}
		b, version = c.appendClaims(b, version)
		c.everybody(c.finish(b))
	}
	if alone {
		c.repeated = version
	}
}

// hearsNobody tells whether nobody else is alive as far as this node knows. If it is this node that is deaf, nobody can ask it for its claims
// either: it says all of them again and again.
func (c *Core) hearsNobody() bool {
	return !slices.ContainsFunc(c.order, func(p *peer) bool { return p.paths[0].up })
}

// Goodbye returns datagrams that say that this process ends, to be sent last of all. The node goes on answering for what this process
// claims for the time given: for so long the others count it as alive.
func (c *Core) Goodbye(retained time.Duration) []Send {
	c.sends, c.arena = c.sends[:0], c.arena[:0]
	for range 3 { // one may get lost
		b := c.appendHello(c.begin(), flagEnded)
		if retained > 0 {
			var at int
			b, at = beginField(b, fieldRetained)
			b = endField(appendRetained(b, retained), at)
		}
		c.everybody(c.finish(b))
	}
	return c.sends
}

// group sends to all segments: to the group, and by broadcast as well to whom it may not reach.
func (c *Core) group(data []byte, broadcast bool) {
	for i := 1; i < len(c.ifaces); i++ {
		if c.ifaces[i].link {
			c.groupOn(i, data, broadcast)
		}
	}
}

func (c *Core) groupOn(at int, data []byte, broadcast bool) {
	if !c.config.Broadcast {
		c.sends = append(c.sends, Send{Iface: c.ifaces[at].name, Data: data})
	}
	if broadcast || c.config.Broadcast {
		c.sends = append(c.sends, Send{Iface: c.ifaces[at].name, Data: data, Broadcast: true})
		c.count.Broadcast++
	}
}

// hearsEarlier reports whether a node is alive whose version does not receive the group. An observer does not know yet.
func (c *Core) hearsEarlier() bool {
	return slices.ContainsFunc(c.order, func(p *peer) bool { return p.paths[0].up && p.minor < minorGroup })
}

// everybody sends to all segments, and to all Nodes.
func (c *Core) everybody(data []byte) {
	c.group(data, c.broadcasts)
	for _, p := range c.order {
		for _, addr := range p.addrs {
			c.sends = append(c.sends, Send{To: addr, Data: data})
		}
	}
}

// converse sends one peer what it asked for, and what this node asks of it.
func (c *Core) converse(now time.Time, p *peer) {
	if p.newerThan > 0 {
		b := c.appendHello(c.begin(), 0)
		b, at := beginField(b, fieldNewer)
		b = binary.BigEndian.AppendUint64(b, p.id)
		b = binary.BigEndian.AppendUint64(b, p.newerThan)
		c.sends = append(c.sends, Send{To: p.newerTo, Data: c.finish(endField(b, at))})
		p.newerThan = 0
	}
	if p.doubts {
		p.doubts = false
		c.reassure(now, p)
	}
	for len(p.helpAbout) > 0 || len(p.answerAbout) > 0 {
		c.to(p, c.finish(c.appendTalk(c.appendHello(c.begin(), 0), p)))
	}
	if p.wants {
		c.answer(p)
		p.wants = false
	}
	if p.paths[0].up && !p.claims.synced() && now.Sub(p.asked) >= c.profile.Interval {
		c.want(now, p)
	}
}

// reassure answers a peer that has not heard this node for a while: directly, and on the segments, where what it hears is
// what counts; there not more often than twice per interval, and by broadcast as well, for the network may have begun
// to drop the group.
func (c *Core) reassure(now time.Time, p *peer) {
	data := c.finish(c.appendHello(c.begin(), 0))
	c.to(p, data)
	if now.Sub(c.reassured) < c.profile.Interval/2 {
		return
	}
	c.reassured = now
	c.group(data, true)
}

// want asks a peer for its claims.
func (c *Core) want(now time.Time, p *peer) {
	p.asked = now
	p.tries++
	group := p.tries > groupAfter && p.tries%2 == 0 && p.fromIface > 0
	b := c.appendHello(c.begin(), 0)
	b, at := beginField(b, fieldWant)
	b = binary.BigEndian.AppendUint64(b, p.id)
	b = binary.BigEndian.AppendUint64(b, p.claims.next())
	if group {
		b = append(b, flagByGroup)
		c.groupOn(p.fromIface, c.finish(endField(b, at)), c.broadcasts)
		return
	}
	c.to(p, c.finish(endField(append(b, 0), at)))
}

// answer sends a peer the claims it has not got.
func (c *Core) answer(p *peer) {
	version := p.wantsAfter
	if version > c.mine.version { // of a time that is over
		version = 0
	}
	for i := 0; i < answersPerTurn && version < c.mine.version; i++ {
		var b []byte
		b, version = c.appendClaims(c.appendHello(c.begin(), 0), version)
		if data := c.finish(b); p.wantsGroup > 0 {
			c.groupOn(p.wantsGroup, data, c.broadcasts)
		} else {
			c.to(p, data)
		}
	}
}

// to sends to where the peer was heard from.
func (c *Core) to(p *peer, data []byte) {
	addr := p.from
	if !addr.IsValid() {
		if len(p.addrs) == 0 {
			return
		}
		addr = p.addrs[0]
	}
	c.sends = append(c.sends, Send{To: addr, Data: data})
}

// begin starts a datagram in the arena.
func (c *Core) begin() []byte {
	c.sequence++
	if cap(c.arena)-len(c.arena) < 2*MaxDatagram {
		c.arena = make([]byte, 0, max(2*cap(c.arena), 8*MaxDatagram)) // what was written stays where it is
	}
	b := c.arena[len(c.arena):len(c.arena):cap(c.arena)]
	return appendHeader(b, c.config.Node, c.ring.keys[0].id, c.cluster, c.incarnation, c.sequence)
}

// finish puts the tag to a datagram.
func (c *Core) finish(b []byte) []byte {
	b = c.ring.tag(b)
	c.arena = c.arena[:len(c.arena)+len(b)]
	return b[:len(b):len(b)]
}

func (c *Core) appendHello(b []byte, flags byte) []byte {
	if c.observer {
		flags |= flagObserver
	}
	if c.leaving {
		flags |= flagLeaving
	}
	if c.config.Retained {
		flags |= flagRetained
	}
	b, at := beginField(b, fieldHello)
	b = append(b, flags)
	b = appendMilliseconds(b, c.profile.Interval)
	b = appendMilliseconds(b, c.profile.Dead)
	b = binary.BigEndian.AppendUint64(b, c.mine.version)
	b = binary.BigEndian.AppendUint64(b, c.mine.digest)
	return c.appendCluster(endField(b, at))
}

// appendSegments says where this node is and whether it hears somebody there: first each interface by its first key,
// which is all that versions before 1.3 compare, then by the others as far as they fit.
func (c *Core) appendSegments(b []byte, now time.Time) []byte {
	b, at := beginField(b, fieldSegments)
	for k, said, more := 0, 0, true; more && said < maxSegments; k++ {
		more = false
		for i := 1; i < len(c.ifaces) && said < maxSegments; i++ {
			f := &c.ifaces[i]
			if !f.link || k >= len(f.keys) {
				continue
			}
			b = binary.BigEndian.AppendUint64(b, f.keys[k])
			b = append(b, c.hearsOn(now, i))
			b = append(b, f.mac[:]...)
			said, more = said+1, true
		}
	}
	return endField(b, at)
}

// appendRan writes how long this process has run.
func appendRan(b []byte, ran time.Duration) []byte {
	b, at := beginField(b, fieldRan)
	return endField(binary.BigEndian.AppendUint64(b, uint64(ran)), at)
}

// hearsOn counts the peers that are heard on an interface by this node itself.
func (c *Core) hearsOn(now time.Time, at int) (n uint8) {
	for _, p := range c.order {
		if w := &p.paths[at]; w.up && !p.away && now.Sub(w.heard) < p.deadAfter(c) && n < 255 {
			n++
		}
	}
	return n
}

// maxSegments leaves room for claims beside them.
const maxSegments = 29

// appendClaims writes the changes after a version, as many as fit, and returns the version that they reach.
func (c *Core) appendClaims(b []byte, version uint64) (grown []byte, upTo uint64) {
	if version >= c.mine.version {
		return b, version
	}
	const most = MaxDatagram - tagSize
	if len(b)+fieldHeader+claimsSize+64 > most {
		return b, version
	}
	b, at := beginField(b, fieldClaims)
	b = binary.BigEndian.AppendUint64(b, version)
	b = binary.BigEndian.AppendUint64(b, 0)
	upTo = version
	complete := true
	for _, change := range c.mine.since(version) {
		have := c.mine.at[change.id]
		if have.version != change.version {
			continue
		}
		n := len(b)
		if b = appendEntry(b, entry{change.id, have.claim}); len(b) > most {
			b, complete = b[:n], false
			break
		}
		upTo = change.version
	}
	if complete {
		upTo = c.mine.version
	}
	binary.BigEndian.PutUint64(b[at+fieldHeader+8:], upTo)
	return endField(b, at), upTo
}

// appendTalk writes as many questions to and answers for a peer as fit.
func (c *Core) appendTalk(b []byte, p *peer) []byte {
	const most = 24 // of each, so that both fit beside the longest name
	if n := min(len(p.helpAbout), most); n > 0 {
		var at int
		b, at = beginField(b, fieldAsk)
		for _, a := range p.helpAbout[:n] {
			b = binary.BigEndian.AppendUint64(b, a.node)
			b = binary.BigEndian.AppendUint64(b, a.segment)
		}
		b = endField(b, at)
		p.helpAbout = p.helpAbout[:copy(p.helpAbout, p.helpAbout[n:])]
	}
	if n := min(len(p.answerAbout), most); n > 0 {
		var at int
		b, at = beginField(b, fieldHeard)
		for _, s := range p.answerAbout[:n] {
			b = binary.BigEndian.AppendUint64(b, s.node)
			b = binary.BigEndian.AppendUint64(b, s.segment)
			b = appendMilliseconds(b, s.age)
		}
		b = endField(b, at)
		p.answerAbout = p.answerAbout[:copy(p.answerAbout, p.answerAbout[n:])]
	}
	return b
}
