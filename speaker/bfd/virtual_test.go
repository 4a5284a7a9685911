package bfd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// fixture is two cores and the wire between them with a virtual clock.
type fixture struct {
	t      *testing.T
	now    time.Time
	start  time.Time
	random *rand.Rand
	sides  map[string]*side
	flight []flight
	delay  time.Duration
	spread time.Duration // random addition to delay
	loss   float64
	cut    map[string]bool // by the sender
	// log is called for every change and packet.
	log func(format string, args ...any)
	// sent and accepted are called for each packet.
	sent, accepted func(by *side, p Packet)
}

// side is one end.
type side struct {
	name   string
	addr   netip.Addr
	peer   *side
	core   *Core
	boots  uint64
	ttl    int
	wants  map[string]Config
	status map[string]Status
	// received is when a packet was last accepted.
	received time.Time
}

type flight struct {
	at time.Time
	to *side
	in Datagram
}

func newFixture(t *testing.T, seed uint64) *fixture {
	f := &fixture{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), random: rand.New(rand.NewPCG(seed, 1)), delay: time.Millisecond,
		cut: map[string]bool{}, log: func(string, ...any) {}, sent: func(*side, Packet) {}, accepted: func(*side, Packet) {}}
	f.start = f.now
	a := &side{name: "a", addr: netip.MustParseAddr("192.0.2.1"), ttl: 255}
	b := &side{name: "b", addr: netip.MustParseAddr("192.0.2.2"), ttl: 255, peer: a}
	a.peer = b
	f.sides = map[string]*side{"a": a, "b": b}
	f.boot(a)
	f.boot(b)
	return f
}

// boot restarts a side.
func (f *fixture) boot(s *side) {
	s.boots++
	s.core = NewCore(s.boots > 1, rand.New(rand.NewPCG(s.boots, uint64(s.name[0])+f.random.Uint64()>>8)))
	s.status = map[string]Status{}
	s.core.Set(f.now, s.wants)
	f.after(s)
}

// want sets a side's configuration.
func (f *fixture) want(s *side, configs map[string]Config) {
	s.wants = configs
	s.core.Set(f.now, configs)
	maps.DeleteFunc(s.status, func(name string, _ Status) bool { _, ok := configs[name]; return !ok })
	f.after(s)
}

// after processes a core's output.
func (f *fixture) after(s *side) {
	changed := s.core.Changed()
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		f.change(s, name, s.status[name], changed[name])
		s.status[name] = changed[name]
	}
	keys := map[uint32]Key{}
	s.core.Sessions(func(d uint32, k Key, _ []string) { keys[d] = k })
	for _, out := range s.core.Out() {
		p := out.Packet
		f.sent(s, p)
		lost := f.cut[s.name] || f.random.Float64() < f.loss
		f.log("%s sends %s%s", s.name, describe(p), map[bool]string{true: ", lost"}[lost])
		if lost {
			continue
		}
		at := f.now.Add(f.delay + time.Duration(f.random.Int64N(int64(f.spread)+1)))
		f.flight = append(f.flight, flight{at, s.peer, Datagram{Source: s.addr, Local: s.peer.addr, Interface: "eth0", TTL: s.ttl,
			MultiHop: keys[out.Session].MultiHop, Data: p.Append(nil)}})
	}
}

func (f *fixture) change(s *side, name string, was, is Status) {
	if was.State != is.State {
		f.log("%s %s: %s%s", s.name, name, is.State, map[bool]string{true: ", " + string(is.Reason)}[is.Reason != ""])
	}
	if is.Transmit != was.Transmit || is.Detection != was.Detection {
		f.log("%s %s: sends each %v, detects in %v", s.name, name, is.Transmit, is.Detection)
	}
}

// describe returns a packet as text.
func describe(p Packet) string {
	text := p.State.String()
	for _, f := range []struct {
		on   bool
		name string
	}{{p.Poll, "P"}, {p.Final, "F"}, {p.Independent, "C"}, {p.Demand, "D"}} {
		if f.on {
			text += " " + f.name
		}
	}
	text += fmt.Sprintf(" %dx%v/%v", p.Multiplier, p.DesiredTx, p.RequiredRx)
	if p.Diagnostic != 0 {
		text += " (" + p.Diagnostic.String() + ")"
	}
	if p.Your == 0 {
		text += " your=0"
	}
	return text
}

// deliver delivers a datagram to a side.
func (f *fixture) deliver(one flight) Result {
	r := one.to.core.Receive(f.now, one.in)
	if r.Drop == Accepted {
		one.to.received = f.now
		p, _ := Parse(one.in.Data)
		f.accepted(one.to, p)
	} else {
		f.log("%s drops it: %s", one.to.name, r.Drop)
	}
	f.after(one.to)
	return r
}

// run advances time; check is called after each step.
func (f *fixture) run(d time.Duration, check func()) {
	end := f.now.Add(d)
	for {
		next := end
		for _, one := range f.flight {
			next = earliest(next, one.at)
		}
		for _, s := range f.sides {
			next = earliest(next, s.core.Next())
		}
		if next.After(f.now) { // a new configuration may have something due in the past
			f.now = next
		}
		if due := slices.IndexFunc(f.flight, func(one flight) bool { return !one.at.After(f.now) }); due >= 0 {
			one := f.flight[due]
			f.flight = slices.Delete(f.flight, due, due+1)
			f.deliver(one)
		} else {
			for _, name := range []string{"a", "b"} {
				f.sides[name].core.Tick(f.now)
				f.after(f.sides[name])
			}
			if !f.now.Before(end) {
				return
			}
		}
		if check != nil {
			check()
		}
	}
}

// until advances time until a condition holds, and returns how long that took.
func (f *fixture) until(what string, limit time.Duration, ok func() bool) time.Duration {
	f.t.Helper()
	from := f.now
	for !ok() {
		if f.now.Sub(from) >= limit {
			f.t.Fatalf("%s: not within %v; a %+v; b %+v", what, limit, f.sides["a"].status, f.sides["b"].status)
		}
		f.run(time.Millisecond, nil)
	}
	return f.now.Sub(from)
}

func (s *side) state() string { return string(s.status["x"].State) }

// pair configures a session with the other side on both, named x.
func (f *fixture) pair(conf func(name string) Config) {
	for _, name := range []string{"a", "b"} {
		s := f.sides[name]
		c := conf(name)
		c.Peer = s.peer.addr
		f.want(s, map[string]Config{"x": c})
	}
}
