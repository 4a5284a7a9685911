package bfd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// Drop is the reason why a packet was dropped.
type Drop string

// The reasons, as in the metric label (RFC 5880, 6.8.6).
const (
	Accepted          Drop = ""
	DropForm          Drop = "malformed"
	DropVersion       Drop = "version"
	DropMultiplier    Drop = "multiplier"
	DropMultipoint    Drop = "multipoint"
	DropNoMy          Drop = "no-discriminator"
	DropAuth          Drop = "authentication"
	DropState         Drop = "state" // has no discriminator of a session, and is neither Down nor AdminDown
	DropUnknown       Drop = "unknown-session"
	DropSource        Drop = "other-source" // has the discriminator of a session with another peer
	DropTTL           Drop = "ttl"
	DropInterface     Drop = "interface"           // of a single-hop session, on another interface than its peer's
	DropDiscriminator Drop = "other-discriminator" // no discriminator, and not from the peer of an up multihop session
	DropFiltered      Drop = "filtered"            // by the kernel, while too many packets match no session
)

// Drops are all reasons.
var Drops = []Drop{DropForm, DropVersion, DropMultiplier, DropMultipoint, DropNoMy, DropAuth, DropState, DropUnknown,
	DropSource, DropTTL, DropInterface, DropDiscriminator, DropFiltered}

// Datagram is a received datagram.
type Datagram struct {
	// Source and Local are the addresses, without zone.
	Source, Local netip.Addr
	// Index is the index of the receiving interface, and Interface its name; only packets without a discriminator need
	// the name.
	Index     int
	Interface string
	TTL       int
	// MultiHop is set if it was sent to the multihop port.
	MultiHop bool
	Data     []byte
}

// Outgoing is a packet that the session with that discriminator is to send.
type Outgoing struct {
	Session uint32
	Packet  Packet
}

// Core is the protocol. It has no clock, does no I/O and is used by one goroutine.
type Core struct {
	independent bool
	random      *rand.Rand
	// sessions are sorted by key, so that the same input produces the same output.
	sessions   []*session
	byDiscr    map[uint32]*session
	out        []Outgoing
	changed    map[string]Status
	generation uint64
}

// NewCore returns a Core without sessions. independent sets the C bit (RFC 5880, 4.1). random generates the
// discriminators.
func NewCore(independent bool, random *rand.Rand) *Core {
	return &Core{independent: independent, random: random, byDiscr: map[uint32]*session{}, changed: map[string]Status{}}
}

// Set sets all sessions by name; sessions that are not in the set send AdminDown and end. Configurations with the same
// addresses share a session, which has the timers of the first name. They must pass Check.
func (c *Core) Set(now time.Time, configs map[string]Config) {
	names, paths := map[Key][]string{}, map[Key]bool{}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		k := configs[name].key()
		names[k] = append(names[k], name)
		paths[k.path()] = true
	}
	for _, s := range slices.Clone(c.sessions) {
		if names[s.key] == nil {
			c.remove(now, s, paths[s.key.path()])
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(names), compareKeys) {
		c.configure(now, k, names[k], configs[names[k][0]])
	}
	c.flush(now)
}

// configure creates a session or updates it to its configuration.
func (c *Core) configure(now time.Time, k Key, names []string, conf Config) {
	at, known := slices.BinarySearchFunc(c.sessions, k, func(s *session, k Key) int { return compareKeys(s.key, k) })
	if !known {
		s := newSession(now, k, conf, c.discriminator())
		c.sessions, c.byDiscr[s.localDiscr] = slices.Insert(c.sessions, at, s), s
		c.generation++
	}
	s := c.sessions[at]
	if s.conf != conf {
		s.due = true // its packets differ (6.8.7)
	}
	s.conf = conf
	if s.state == AdminDown { // configured again
		s.ends = time.Time{}
		s.become(now, Down, NoDiagnostic, NeverUp)
	}
	s.updateIntervals()
	if !slices.Equal(s.names, names) {
		s.names = names
		c.generation++
		c.queueReport(s)
	}
}

// remove makes a session send AdminDown for the remote detection time (6.8.16). It ends the session at once if the
// remote system is unknown, or if another session takes the path over.
func (c *Core) remove(now time.Time, s *session, replaced bool) {
	s.names = nil
	c.generation++
	switch {
	case replaced || s.remote.discr == 0:
		c.end(s)
	case s.state != AdminDown:
		s.become(now, AdminDown, AdministrativeDown, "")
		s.ends = now.Add(time.Duration(s.conf.Timers.Multiplier) * max(s.desiredTx, s.remote.minRx))
	}
}

func (c *Core) end(s *session) {
	c.sessions = slices.DeleteFunc(c.sessions, func(other *session) bool { return other == s })
	delete(c.byDiscr, s.localDiscr)
	c.generation++
}

// Result is the result of a received datagram.
type Result struct {
	Drop Drop
	// Session is the one that accepted it.
	Session uint32
	// Silence is the silence that it ended, as a share of the detection time; 0 if the session was not up.
	Silence float64
}

// Receive processes a datagram.
func (c *Core) Receive(now time.Time, in Datagram) Result {
	s, p, drop := c.accept(&in)
	if drop != Accepted {
		return Result{Drop: drop}
	}
	r := Result{Session: s.localDiscr}
	if d := s.detection(); s.state == Up && d > 0 {
		r.Silence = float64(now.Sub(s.lastRx)) / float64(d)
	}
	s.receive(now, &p)
	c.settle(now, s)
	return r
}

// accept is the first half of 6.8.6.
func (c *Core) accept(in *Datagram) (*session, Packet, Drop) {
	p, err := Parse(in.Data)
	switch {
	case err == errVersion:
		return nil, p, DropVersion
	case err != nil:
		return nil, p, DropForm
	case p.Multiplier == 0:
		return nil, p, DropMultiplier
	case p.Multipoint:
		return nil, p, DropMultipoint
	case p.My == 0:
		return nil, p, DropNoMy
	case p.Your == 0 && p.State != Down && p.State != AdminDown:
		return nil, p, DropState
	}
	s, drop := c.find(&p, in)
	switch {
	case drop != Accepted:
		return nil, p, drop
	case s.index != 0 && s.index != in.Index:
		c.recordInterface(s)
		return nil, p, DropInterface
	case s.onlyDiscriminator() != 0 && p.Your == 0 && p.My != s.onlyDiscriminator():
		return nil, p, DropDiscriminator
	case in.TTL < s.conf.minimumTTL():
		c.recordTTL(s, in.TTL)
		return nil, p, DropTTL
	case p.Authenticated:
		return nil, p, DropAuth
	}
	return s, p, Accepted
}

// recordTTL records the TTL as a possible reason why a session does not come up.
func (c *Core) recordTTL(s *session, ttl int) {
	if s.state == Up || s.remote.discr != 0 || s.ttl == ttl && s.discardReason != "" {
		return
	}
	s.ttl = ttl
	s.discardReason = fmt.Sprintf("packets of the peer arrive with TTL %d, minimum %d", ttl, s.conf.minimumTTL())
	if s.conf.minimumTTL() < 255 {
		s.discardReason += fmt.Sprintf(": set minimumTtl to %d if the peer is that many hops away", ttl)
	} else {
		s.discardReason += ": the peer is not on link, or another host uses its address"
	}
	c.queueReport(s)
}

// recordInterface records the interface as a possible reason why a session does not come up.
func (c *Core) recordInterface(s *session) {
	if s.state == Up || s.remote.discr != 0 || s.discardReason != "" {
		return
	}
	s.discardReason = "packets of the peer arrive on another interface than the route to it: use one interface for both " +
		"(RFC 5881, 3), or another host uses its address"
	c.queueReport(s)
}

// find returns the session of a packet: by its discriminator, or else by its addresses (RFC 5880, 6.3; RFC 5881, 3; RFC
// 5883, 4).
func (c *Core) find(p *Packet, in *Datagram) (*session, Drop) {
	if p.Your != 0 {
		s := c.byDiscr[p.Your]
		switch {
		case s == nil || s.key.MultiHop != in.MultiHop:
			return nil, DropUnknown
		case s.key.Peer != in.Source:
			return nil, DropSource
		}
		return s, Accepted
	}
	var found *session
	for _, s := range c.sessions {
		k := &s.key
		if k.Peer != in.Source || k.MultiHop != in.MultiHop || k.Interface != "" && k.Interface != in.Interface || k.Local.IsValid() && k.Local != in.Local {
			continue
		}
		if found == nil || k.Local.IsValid() { // a session with a local address is more specific
			found = s
		}
	}
	if found == nil {
		return nil, DropUnknown
	}
	return found, Accepted
}

// Tick processes what is due. Packets received before now must have been passed to Receive, or sessions may expire
// wrongly.
func (c *Core) Tick(now time.Time) { c.flush(now) }

// flush processes every session that is due.
func (c *Core) flush(now time.Time) {
	over := false
	for _, s := range c.sessions {
		if w := s.wake(); !s.due && (w.IsZero() || w.After(now)) && s.armed == s.interval() {
			continue
		}
		s.tick(now)
		c.settle(now, s)
		over = over || s.over(now)
	}
	if over {
		for _, s := range slices.Clone(c.sessions) {
			if s.over(now) {
				c.end(s)
			}
		}
	}
}

// settle sends a session's pending packets, and sets its timers.
func (c *Core) settle(now time.Time, s *session) {
	s.arm(now, c.random)
	if s.final { // regardless of all else (6.8.7)
		c.out = append(c.out, Outgoing{s.localDiscr, s.packet(true, c.independent)})
	}
	if s.due && (s.armed > 0 || s.remote.discr != 0) {
		c.out = append(c.out, Outgoing{s.localDiscr, s.packet(false, c.independent)})
		s.lastTx = now
		s.rearm(now, c.random)
	}
	s.due, s.final = false, false
	if s.status() != s.reported {
		c.queueReport(s)
	}
}

// queueReport queues a status report of a session.
func (c *Core) queueReport(s *session) {
	s.reported = s.status()
	for _, name := range s.names {
		c.changed[name] = s.reported
	}
}

// Next returns when Tick is due, the zero time for never.
func (c *Core) Next() (next time.Time) {
	for _, s := range c.sessions {
		next = earliest(next, s.wake())
	}
	return next
}

// Out returns the packets to send, in order. They are valid until the next call.
func (c *Core) Out() []Outgoing {
	out := c.out
	c.out = c.out[:0]
	return out
}

// Changed returns the sessions whose status has changed, by name, nil if none has.
func (c *Core) Changed() map[string]Status {
	if len(c.changed) == 0 {
		return nil
	}
	out := c.changed
	c.changed = map[string]Status{}
	return out
}

// Problem sets the error that prevents a session from sending or receiving, "" if there is none any more.
func (c *Core) Problem(discr uint32, what string) {
	if s := c.byDiscr[discr]; s != nil && s.problem != what {
		s.problem = what
		c.queueReport(s)
	}
}

// Bind sets the interface of a single-hop session (RFC 5881, 3), 0 if unknown.
func (c *Core) Bind(discr uint32, index int) {
	if s := c.byDiscr[discr]; s != nil && !s.key.MultiHop {
		s.index = index
	}
}

// Generation changes when the result of Sessions changes.
func (c *Core) Generation() uint64 { return c.generation }

// Sessions calls f with the discriminator, the addresses and the names of each session; a session that ends has no
// names.
func (c *Core) Sessions(f func(discr uint32, k Key, names []string)) {
	for _, s := range c.sessions {
		f(s.localDiscr, s.key, s.names)
	}
}

// discriminator returns a random unused discriminator (6.8.1).
func (c *Core) discriminator() uint32 {
	for {
		if d := c.random.Uint32(); d != 0 && c.byDiscr[d] == nil {
			return d
		}
	}
}

// Up reports whether a session is up.
func (c *Core) Up(discr uint32) bool { return c.byDiscr[discr] != nil && c.byDiscr[discr].state == Up }

// Initial returns the discriminator that the sender of packets without a session's discriminator must have, 0 for any
// (only), and whether the session waits for such a packet (passive).
func (c *Core) Initial(discr uint32) (only uint32, awaited bool) {
	if s := c.byDiscr[discr]; s != nil {
		return s.onlyDiscriminator(), s.conf.Timers.Passive
	}
	return 0, false
}

// ResetRemote resets the remote state of an active session that is not up, because too many hosts claim to be the peer:
// the real peer answers a packet without a discriminator.
func (c *Core) ResetRemote(now time.Time, discr uint32) {
	s := c.byDiscr[discr]
	if s == nil || s.state == Up || s.state == AdminDown || s.conf.Timers.Passive {
		return
	}
	s.resetRemote()
	if s.state == Init {
		s.become(now, Down, s.diag, s.reason)
	}
	c.settle(now, s)
}
