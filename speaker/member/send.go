package member

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"
)

// heartbeats is what this node's last heartbeats advertised.
type heartbeats struct {
	state     []byte
	unchanged int // number of heartbeats that repeated it
}

const (
	// answersPerRequest is how many datagrams of claims a node gets per request; for more it must repeat the request.
	answersPerRequest = 16
	// changesPerHeartbeat is how many datagrams of changed claims a heartbeat sends to all nodes; the rest is sent on
	// request.
	changesPerHeartbeat = 4
	// repeatsPerHeartbeat is how many datagrams of claims a heartbeat has if its node receives no other node.
	repeatsPerHeartbeat = 2
	// groupAfter is how many requests for claims go unanswered before they are sent to the group.
	groupAfter = 3
)

// compose writes the datagrams to send: a heartbeat if it is due, and requests and answers. ran is how long this
// process has run.
func (c *Core) compose(now time.Time, ran time.Duration) {
	if c.heartbeatNow || !now.Before(c.nextHeartbeat) {
		c.sendHeartbeat(now, ran)
	}
	c.heartbeatNow, c.urgent = false, false
	for _, p := range c.order {
		c.sendPending(now, p)
	}
}

// sendHeartbeat sends to all nodes this node's state, the nodes it receives, and the claims changed in the last three
// heartbeats.
func (c *Core) sendHeartbeat(now time.Time, ran time.Duration) {
	// The heartbeats of many nodes must not synchronize.
	c.lastHeartbeat = now
	c.nextHeartbeat = now.Add(c.profile.Interval - time.Duration(c.random.Int64N(int64(c.profile.Interval/10))))
	version := c.recent[len(c.recent)-1]
	copy(c.recent[1:], c.recent[:])
	c.recent[0] = c.mine.version
	most, alone := changesPerHeartbeat, c.alone()
	if alone {
		if version, most = c.repeated, repeatsPerHeartbeat; version >= c.mine.version {
			version = 0
		}
	}
	for i := 0; i == 0 || i < most && version < c.mine.version; i++ {
		header := c.begin()
		b := c.appendHello(header, 0)
		if i == 0 {
			b = c.appendSilent(c.appendSegments(b, now))
			c.heartbeats.record(b[len(header):])
			b = c.appendSlots(appendRan(b, ran))
			if c.heartbeats.unchanged >= routineAfter && version == c.mine.version && !c.heartbeatNow && !c.observer {
				c.sendRoutine(now, b)
				break
			}
		}
		b, version = c.appendClaims(b, version)
		c.toAll(c.finish(b))
	}
	if alone {
		c.repeated = version
	}
}

// alone reports whether no other node is alive from this node's view. If the link is asymmetric and this node
// receives nothing, no request for its claims arrives either: it repeats all of them.
func (c *Core) alone() bool {
	return !slices.ContainsFunc(c.order, func(p *peer) bool { return p.paths[0].up })
}

// Goodbye returns the datagrams that announce the end of this process, to be sent last. The node continues to answer
// for this process's claims for the given time, and the others count it as alive that long.
func (c *Core) Goodbye(retained time.Duration) []Send {
	c.sends, c.arena = c.sends[:0], c.arena[:0]
	for range 3 { // one may get lost
		b := c.appendHello(c.begin(), flagEnded)
		if retained > 0 {
			var at int
			b, at = beginField(b, fieldRetained)
			b = endField(binary.BigEndian.AppendUint32(b, uint32(min(retained, maxRetained).Milliseconds())), at)
		}
		c.toAll(c.finish(b))
	}
	return c.sends
}

// group sends to all segments: to the group, and with broadcast also to hosts that the group may not reach.
func (c *Core) group(data []byte, broadcast bool) {
	for i := 1; i < len(c.ifaces); i++ {
		if c.ifaces[i].link {
			c.groupOn(i, data, broadcast)
		}
	}
}

func (c *Core) groupOn(at int, data []byte, broadcast bool) {
	families := []bool{false, true}
	if !c.mixed(at) {
		families = families[:1]
	}
	for _, v6 := range families {
		if !c.config.Broadcast {
			c.sends = append(c.sends, Send{Iface: c.ifaces[at].name, Data: data, IPv6: v6})
		}
		if broadcast || c.config.Broadcast {
			c.sends = append(c.sends, Send{Iface: c.ifaces[at].name, Data: data, Broadcast: true, IPv6: v6})
			c.count.Broadcast++
		}
	}
}

// mixed reports whether this node has IPv4 on a segment and receives a node there by IPv6 alone, or did so when it was
// received last: that node may have no IPv4.
func (c *Core) mixed(at int) bool {
	return c.ifaces[at].ipv4 && slices.ContainsFunc(c.order, func(p *peer) bool {
		w := &p.paths[at]
		return w.group.Sub(w.group4) >= p.deadAfter(c)
	})
}

// Sent records whether a datagram to the group on an interface could be sent.
func (c *Core) Sent(iface string, ok bool) {
	if at, known := c.findIface(iface); known {
		c.ifaces[at].unsent = !ok
	}
}

// toAll sends to all segments, and to all Nodes.
func (c *Core) toAll(data []byte) {
	c.group(data, false)
	for _, p := range c.order {
		c.toAddrs(p.addrs, data)
	}
}

func (c *Core) toAddrs(addrs []netip.Addr, data []byte) {
	for _, addr := range addrs {
		c.sends = append(c.sends, Send{To: addr, Data: data})
	}
}

// sendPending sends one peer the answers to its requests, and this node's requests.
func (c *Core) sendPending(now time.Time, p *peer) {
	if p.newerThan > 0 {
		b := c.appendHello(c.begin(), 0)
		b, at := beginField(b, fieldNewer)
		b = binary.BigEndian.AppendUint64(b, p.id)
		b = binary.BigEndian.AppendUint64(b, p.newerThan)
		c.sends = append(c.sends, Send{To: p.newerTo, Data: c.finish(endField(b, at))})
		p.newerThan = 0
	}
	if p.challengeable(c, now) && now.Sub(p.challenged) >= c.profile.Interval {
		challenge := c.about(p, fieldChallenge, c.config.Nonce)
		c.to(p, challenge)
		// It may receive this node through others only.
		if !p.challenged.IsZero() && (c.observer || now.Sub(p.challengedByGroup) >= maxObserverTime) {
			p.challengedByGroup = now
			c.group(challenge, false)
		}
		p.challenged = now
	}
	if p.proves != 0 { // first: what follows counts
		c.to(p, c.about(p, fieldProof, p.proves))
		p.proves = 0
	}
	if p.probesSelf {
		p.probesSelf = false
		c.announceAlive(now, p)
	}
	for len(p.relayRequests) > 0 || len(p.relayAnswers) > 0 {
		c.to(p, c.finish(c.appendRelays(c.appendHello(c.begin(), 0), p)))
	}
	for _, id := range p.missed {
		c.to(p, c.about(p, fieldMissed, id))
	}
	p.missed = p.missed[:0]
	c.sendPassedOn(p)
	if p.wants {
		c.answer(p)
		p.wants = false
	}
	if p.paths[0].up && !p.synced() && now.Sub(p.claimsRequested) >= c.profile.Interval {
		c.want(now, p)
	}
}

// challengeable reports whether datagrams arrive that may be a recording.
func (p *peer) challengeable(c *Core, now time.Time) bool {
	return p.unproved && now.Sub(p.arrived) < p.deadAfter(c)
}

// about returns a datagram with a field of a peer's id and a number.
func (c *Core) about(p *peer, field byte, number uint64) []byte {
	b, at := beginField(c.appendHello(c.begin(), 0), field)
	b = binary.BigEndian.AppendUint64(b, p.id)
	return c.finish(endField(binary.BigEndian.AppendUint64(b, number), at))
}

// announceAlive answers a peer that has not received this node for a while: directly, and on the segments, because only
// reception on a segment counts there. On the segments it sends at most twice per interval, and also by broadcast,
// because the network may have begun to drop the group.
func (c *Core) announceAlive(now time.Time, p *peer) {
	data := c.finish(c.appendHello(c.begin(), 0))
	c.to(p, data)
	if now.Sub(c.announcedAlive) < c.profile.Interval/2 {
		return
	}
	c.announcedAlive = now
	c.group(data, true)
}

// want requests a peer's claims.
func (c *Core) want(now time.Time, p *peer) {
	p.claimsRequested = now
	p.tries++
	group := p.tries > groupAfter && p.tries%2 == 0
	b := c.appendHello(c.begin(), 0)
	b, at := beginField(b, fieldWant)
	b = binary.BigEndian.AppendUint64(b, p.id)
	b = binary.BigEndian.AppendUint64(b, p.claims.next())
	if group {
		b = append(b, flagByGroup)
		c.group(c.finish(endField(b, at)), false)
		return
	}
	c.to(p, c.finish(endField(append(b, 0), at)))
}

// answer sends a peer the claims it lacks.
func (c *Core) answer(p *peer) {
	version := p.wantsAfter
	if version > c.mine.version { // a version of an earlier incarnation
		version = 0
	}
	for i := 0; i < answersPerRequest && version < c.mine.version; i++ {
		var b []byte
		b, version = c.appendClaims(c.appendHello(c.begin(), 0), version)
		if data := c.finish(b); p.wantsGroup {
			c.group(data, false)
		} else {
			c.to(p, data)
		}
	}
}

// to sends to the address from which the peer was received.
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
		c.arena = make([]byte, 0, max(2*cap(c.arena), 8*MaxDatagram)) // written data stays in place
	}
	b := c.arena[len(c.arena):len(c.arena):cap(c.arena)]
	return appendHeader(b, c.config.Node, c.ring.keys[0].id, c.cluster, c.incarnation, c.sequence)
}

// finish appends the tag to a datagram.
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
	switch {
	case c.published.Direct && c.published.DirectIPv4Only:
		flags |= flagDirect | flagDirectIPv4
	case c.published.Direct:
		flags |= flagDirect
	case c.decided:
		flags |= flagNotDirect
	}
	b, at := beginField(b, fieldHello)
	b = append(b, flags)
	b = appendMilliseconds(b, c.profile.Interval)
	b = appendMilliseconds(b, c.profile.Dead)
	b = binary.BigEndian.AppendUint64(b, c.mine.version)
	b = binary.BigEndian.AppendUint64(b, c.mine.digest)
	return c.appendCluster(endField(b, at))
}

// appendSegments writes this node's segments and how many nodes it receives on each, with key 0 by their InternalIPs:
// first the first key of each interface, then the others as far as they fit.
func (c *Core) appendSegments(b []byte, now time.Time) []byte {
	b, at := beginField(b, fieldSegments)
	for k, written, more := 0, 0, true; more && written < maxSegments; k++ {
		more = false
		for i := 0; i < len(c.ifaces) && written < maxSegments; i++ {
			f := &c.ifaces[i]
			if i == 0 && !f.ever || i > 0 && !f.link || k >= len(f.keys) {
				continue
			}
			b = binary.BigEndian.AppendUint64(b, f.keys[k])
			b = append(b, c.countReceived(now, i))
			b = append(b, f.mac[:]...)
			written, more = written+1, true
		}
	}
	return endField(b, at)
}

// appendRan writes how long this process has run.
func appendRan(b []byte, ran time.Duration) []byte {
	b, at := beginField(b, fieldRan)
	return endField(binary.BigEndian.AppendUint64(b, uint64(ran)), at)
}

func (c *Core) appendSlots(b []byte) []byte {
	if !c.hasSlots {
		return b
	}
	b, at := beginField(b, fieldSlots)
	return endField(binary.BigEndian.AppendUint64(b, c.slots), at)
}

// countReceived counts the peers that this node itself receives on an interface, or by their InternalIPs.
func (c *Core) countReceived(now time.Time, at int) (n uint8) {
	for _, p := range c.order {
		w := &p.paths[at]
		last := w.received
		if at == 0 {
			last = p.internal
		}
		if w.up && !p.away && now.Sub(last) < p.deadAfter(c) && n < 255 {
			n++
		}
	}
	return n
}

// maxSegments leaves room for claims in the same datagram.
const maxSegments = 28

// appendClaims writes as many of the changes after a version as fit, and returns the version that they reach.
func (c *Core) appendClaims(b []byte, version uint64) (grown []byte, upTo uint64) {
	if version >= c.mine.version {
		return b, version
	}
	const most = MaxDatagram - tagSize - envelope
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
	} else if upTo == version {
		return b[:at], version
	}
	binary.BigEndian.PutUint64(b[at+fieldHeader+8:], upTo)
	return endField(b, at), upTo
}

// appendRelays writes as many relay requests and answers for a peer as fit.
func (c *Core) appendRelays(b []byte, p *peer) []byte {
	const most = 24 // of each, so that both fit with the longest name
	if n := min(len(p.relayRequests), most); n > 0 {
		var at int
		b, at = beginField(b, fieldRelayRequest)
		for _, a := range p.relayRequests[:n] {
			b = binary.BigEndian.AppendUint64(b, a.node)
			b = binary.BigEndian.AppendUint64(b, a.segment)
		}
		b = endField(b, at)
		p.relayRequests = p.relayRequests[:copy(p.relayRequests, p.relayRequests[n:])]
	}
	if n := min(len(p.relayAnswers), most); n > 0 {
		var at int
		b, at = beginField(b, fieldRelay)
		for _, s := range p.relayAnswers[:n] {
			b = binary.BigEndian.AppendUint64(b, s.node)
			b = binary.BigEndian.AppendUint64(b, s.segment)
			b = appendMilliseconds(b, s.age)
		}
		b = endField(b, at)
		p.relayAnswers = p.relayAnswers[:copy(p.relayAnswers, p.relayAnswers[n:])]
	}
	return b
}

// A heartbeat that only repeats what earlier ones advertised is routine: its flag allows the receiver to read it
// together with others, at its own next heartbeat, by the time of arrival that the kernel recorded. Everything else is
// read at once: changes and their repetitions, requests, answers and goodbyes.

// routineAfter is how many heartbeats in a row advertise a change before they are routine; one may get lost.
const routineAfter = 3

// record records the state in a heartbeat.
func (h *heartbeats) record(state []byte) {
	if bytes.Equal(h.state, state) {
		h.unchanged++
		return
	}
	h.state, h.unchanged = append(h.state[:0], state...), 0
}

// flagsAt is the offset of the flags of the hello field, the first one, after the node name.
const flagsAt = headerSize + fieldHeader

// Routine reports whether a datagram is a routine heartbeat. It does not check the tag.
func Routine(datagram []byte) bool {
	if len(datagram) <= 3 {
		return false
	}
	name := int(datagram[3])
	return len(datagram) > flagsAt+name && datagram[headerSize+name] == fieldHello && datagram[flagsAt+name]&flagRoutine != 0
}

// sendRoutine sends a heartbeat without news to all segments, and to all Nodes: to their InternalIPs round robin if one
// of these suffices. The copy for a node that this one does not receive is not routine: when the machine resumes, or
// the network works again, it is read at once.
func (c *Core) sendRoutine(now time.Time, b []byte) {
	flags := flagsAt + len(c.config.Node)
	b[flags] |= flagRoutine
	data := c.finish(b)
	c.group(data, false)
	var urgent []byte
	for _, p := range c.order {
		if !c.misses(p) {
			addrs := p.addrs
			if len(addrs) > 1 && c.needsOne(now, p) {
				next := c.heartbeats.unchanged % len(addrs)
				addrs = addrs[next : next+1]
			}
			c.toAddrs(addrs, data)
			continue
		}
		if urgent == nil {
			urgent = append(c.begin(), data[headerSize+len(c.config.Node):len(data)-tagSize]...)
			urgent[flags] &^= flagRoutine
			urgent = c.finish(urgent)
		}
		c.toAddrs(p.addrs, urgent)
	}
}

// needsOne reports whether one copy of a heartbeat by unicast suffices for a node: this node receives its datagrams to
// the group, where it sends to the group itself, and those by unicast from each of its InternalIPs on one interface.
// Otherwise not each copy may arrive, or the other node receives them on different interfaces.
func (c *Core) needsOne(now time.Time, p *peer) bool {
	dead := p.deadAfter(c)
	for _, s := range p.sources {
		if now.Sub(s.received) >= dead || s.iface != p.sources[0].iface {
			return false
		}
	}
	for i := 1; i < len(c.ifaces); i++ {
		if c.ifaces[i].link && now.Sub(p.paths[i].group) < dead {
			return true
		}
	}
	return false
}

// misses reports whether this node does not receive a peer on a path, or the peer reports that of this node.
func (c *Core) misses(p *peer) bool {
	return !p.paths[0].up || slices.ContainsFunc(p.paths[1:], func(w path) bool { return w.lost || w.asymmetric })
}
