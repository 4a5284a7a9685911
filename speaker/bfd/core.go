package bfd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// Drop says why a packet was not taken in.
type Drop string

// The reasons, as the metric has them (RFC 5880, 6.8.6).
const (
	Taken          Drop = ""
	DropForm       Drop = "malformed"
	DropVersion    Drop = "version"
	DropMultiplier Drop = "multiplier"
	DropMultipoint Drop = "multipoint"
	DropNoMy       Drop = "no-discriminator"
	DropAuth       Drop = "authentication"
	DropState      Drop = "state" // names no session, and is neither Down nor AdminDown
	DropUnknown    Drop = "unknown-session"
	DropSource     Drop = "other-source" // names a session with another peer
	DropTTL        Drop = "ttl"
	DropInterface  Drop = "interface"           // of a single-hop session, on another interface than that of its peer
	DropNewcomer   Drop = "other-discriminator" // names none, and is not of the peer of a multihop session that is up
	DropFiltered   Drop = "filtered"            // by the kernel, while too many packets are of no session
)

// Drops are all reasons.
var Drops = []Drop{DropForm, DropVersion, DropMultiplier, DropMultipoint, DropNoMy, DropAuth, DropState, DropUnknown,
	DropSource, DropTTL, DropInterface, DropNewcomer, DropFiltered}

// Datagram is one that was received.
type Datagram struct {
	// Source and Local are the addresses, without zone.
	Source, Local netip.Addr
	// Index of the interface on which it came, and its name, which only packets that name no session need.
	Index     int
	Interface string
	TTL       int
	// MultiHop is set if it came to that port.
	MultiHop bool
	Data     []byte
}

// Outgoing is a packet to be sent by the session with that discriminator.
type Outgoing struct {
	Session uint32
	Packet  Packet
}

// Core is the protocol. It knows no clock, does no I/O and is used by one goroutine.
type Core struct {
	independent bool
	random      *rand.Rand
	// sessions by their keys, ascending, so that the same input gives the same output.
	sessions   []*session
	byDiscr    map[uint32]*session
	out        []Outgoing
	changed    map[string]Status
	generation uint64
}

// NewCore returns one without sessions. independent sets the C bit (RFC 5880, 4.1). The discriminators come from random.
func NewCore(independent bool, random *rand.Rand) *Core {
	return &Core{independent: independent, random: random, byDiscr: map[uint32]*session{}, changed: map[string]Status{}}
}

// Set says which sessions there are, by name; all that are not named say goodbye and end. Configurations with the same addresses share a
// session, which has the timers of the first name. They must pass Check.
func (c *Core) Set(now time.Time, configs map[string]Config) {
	names, paths := map[Key][]string{}, map[Key]bool{}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		k := configs[name].key()
		names[k] = append(names[k], name)
		paths[k.path()] = true
	}
	for _, s := range slices.Clone(c.sessions) {
		if names[s.key] == nil {
			c.leave(now, s, paths[s.key.path()])
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(names), compareKeys) {
		c.want(now, k, names[k], configs[names[k][0]])
	}
	c.flush(now)
}

// want makes a session or brings it to its configuration.
func (c *Core) want(now time.Time, k Key, names []string, conf Config) {
	at, known := slices.BinarySearchFunc(c.sessions, k, func(s *session, k Key) int { return compareKeys(s.key, k) })
	if !known {
		s := newSession(now, k, conf, c.discriminator())
		c.sessions, c.byDiscr[s.localDiscr] = slices.Insert(c.sessions, at, s), s
		c.generation++
	}
	s := c.sessions[at]
	if s.conf != conf {
		s.due = true // what it says differs (6.8.7)
	}
	s.conf = conf
	if s.state == AdminDown { // wanted again
		s.ends = time.Time{}
		s.become(now, Down, NoDiagnostic, NeverUp)
	}
	s.wish()
	if !slices.Equal(s.names, names) {
		s.names = names
		c.generation++
		c.note(s)
	}
}

// leave has a session say goodbye for the other side's detection time (6.8.16), or ends it if there is nobody to be told, or if
// another session takes the path over.
func (c *Core) leave(now time.Time, s *session, taken bool) {
	s.names = nil
	c.generation++
	switch {
	case taken || s.remote.discr == 0:
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

// Result is what became of a datagram.
type Result struct {
	Drop Drop
	// Session that took it in.
	Session uint32
	// Silence that it ended, as a share of the detection time; 0 if the session was not up.
	Silence float64
}

// Receive takes in a datagram.
func (c *Core) Receive(now time.Time, in Datagram) Result {
	s, p, drop := c.accept(&in)
	if drop != Taken {
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
	case drop != Taken:
		return nil, p, drop
	case s.index != 0 && s.index != in.Index:
		c.elsewhere(s)
		return nil, p, DropInterface
	case s.only() != 0 && p.Your == 0 && p.My != s.only():
		return nil, p, DropNewcomer
	case in.TTL < s.conf.minimumTTL():
		c.tooFar(s, in.TTL)
		return nil, p, DropTTL
	case p.Authenticated:
		return nil, p, DropAuth
	}
	return s, p, Taken
}

// tooFar says of a session that does not come up that the TTL may be why.
func (c *Core) tooFar(s *session, ttl int) {
	if s.state == Up || s.remote.discr != 0 || s.ttl == ttl && s.far != "" {
		return
	}
	s.ttl = ttl
	s.far = fmt.Sprintf("packets of the peer arrive with a TTL of %d, and %d is the least", ttl, s.conf.minimumTTL())
	if s.conf.minimumTTL() < 255 {
		s.far += fmt.Sprintf(": let minimumTtl be %d, if it is that far away", ttl)
	} else {
		s.far += ": it is not on link, or another host uses its address"
	}
	c.note(s)
}

// elsewhere records the interface as a possible reason why a session does not come up.
func (c *Core) elsewhere(s *session) {
	if s.state == Up || s.remote.discr != 0 || s.far != "" {
		return
	}
	s.far = "packets of the peer arrive on another interface than that of the route to it: let both be one " +
		"(RFC 5881, 3), or another host uses its address"
	c.note(s)
}

// find returns the session of a packet: that which it names, else that of the addresses (RFC 5880, 6.3; RFC 5881, 3; RFC 5883, 4).
func (c *Core) find(p *Packet, in *Datagram) (*session, Drop) {
	if p.Your != 0 {
		s := c.byDiscr[p.Your]
		switch {
		case s == nil || s.key.MultiHop != in.MultiHop:
			return nil, DropUnknown
		case s.key.Peer != in.Source:
			return nil, DropSource
		}
		return s, Taken
	}
	var found *session
	for _, s := range c.sessions {
		k := &s.key
		if k.Peer != in.Source || k.MultiHop != in.MultiHop || k.Interface != "" && k.Interface != in.Interface || k.Local.IsValid() && k.Local != in.Local {
			continue
		}
		if found == nil || k.Local.IsValid() { // the one that names its address knows better
			found = s
		}
	}
	if found == nil {
		return nil, DropUnknown
	}
	return found, Taken
}

// Tick does what is due. Packets that were received before now must have been taken in, or sessions may expire that need not.
func (c *Core) Tick(now time.Time) { c.flush(now) }

// flush has every session do what is due.
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

// settle sends what a session owes, and sets its timers.
func (c *Core) settle(now time.Time, s *session) {
	s.arm(now, c.random)
	if s.final { // whatever else holds (6.8.7)
		c.out = append(c.out, Outgoing{s.localDiscr, s.packet(true, c.independent)})
	}
	if s.due && (s.armed > 0 || s.remote.discr != 0) {
		c.out = append(c.out, Outgoing{s.localDiscr, s.packet(false, c.independent)})
		s.lastTx = now
		s.rearm(now, c.random)
	}
	s.due, s.final = false, false
	if s.status() != s.reported {
		c.note(s)
	}
}

// note has the status of a session reported.
func (c *Core) note(s *session) {
	s.reported = s.status()
	for _, name := range s.names {
		c.changed[name] = s.reported
	}
}

// Next is when Tick must be called, the zero time for never.
func (c *Core) Next() (next time.Time) {
	for _, s := range c.sessions {
		next = earliest(next, s.wake())
	}
	return next
}

// Out returns the packets to be sent, in order. They are valid until the next call.
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

// Problem says what keeps a session from sending or receiving, "" if nothing does any more.
func (c *Core) Problem(discr uint32, what string) {
	if s := c.byDiscr[discr]; s != nil && s.problem != what {
		s.problem = what
		c.note(s)
	}
}

// Bind sets the interface of a single-hop session (RFC 5881, 3), 0 if it is not known.
func (c *Core) Bind(discr uint32, index int) {
	if s := c.byDiscr[discr]; s != nil && !s.key.MultiHop {
		s.index = index
	}
}

// Generation changes with what Sessions returns.
func (c *Core) Generation() uint64 { return c.generation }

// Sessions calls f with the discriminator, the addresses and the names of each session; one that says goodbye has no names.
func (c *Core) Sessions(f func(discr uint32, k Key, names []string)) {
	for _, s := range c.sessions {
		f(s.localDiscr, s.key, s.names)
	}
}

// discriminator returns a random one that is not in use (6.8.1).
func (c *Core) discriminator() uint32 {
	for {
		if d := c.random.Uint32(); d != 0 && c.byDiscr[d] == nil {
			return d
		}
	}
}

// Up tells whether a session is up.
func (c *Core) Up(discr uint32) bool { return c.byDiscr[discr] != nil && c.byDiscr[discr].state == Up }

// Newcomers returns which discriminator packets of the session that name none have, 0 if any may (only), and whether
// the session waits for one.
func (c *Core) Newcomers(discr uint32) (only uint32, awaited bool) {
	if s := c.byDiscr[discr]; s != nil {
		return s.only(), s.conf.Timers.Passive
	}
	return 0, false
}

// Crowded has an active session that is not up forget who the other side is, since too many claim to be it: the real
// one answers a packet that names none.
func (c *Core) Crowded(now time.Time, discr uint32) {
	s := c.byDiscr[discr]
	if s == nil || s.state == Up || s.state == AdminDown || s.conf.Timers.Passive {
		return
	}
	s.forget()
	if s.state == Init {
		s.become(now, Down, s.diag, s.reason)
	}
	c.settle(now, s)
}
