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

// world is two cores and the wire between them with a virtual clock.
type world struct {
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

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), random: rand.New(rand.NewPCG(seed, 1)), delay: time.Millisecond,
		cut: map[string]bool{}, log: func(string, ...any) {}, sent: func(*side, Packet) {}, accepted: func(*side, Packet) {}}
	w.start = w.now
	a := &side{name: "a", addr: netip.MustParseAddr("192.0.2.1"), ttl: 255}
	b := &side{name: "b", addr: netip.MustParseAddr("192.0.2.2"), ttl: 255, peer: a}
	a.peer = b
	w.sides = map[string]*side{"a": a, "b": b}
	w.boot(a)
	w.boot(b)
	return w
}

// boot restarts a side.
func (w *world) boot(s *side) {
	s.boots++
	s.core = NewCore(s.boots > 1, rand.New(rand.NewPCG(s.boots, uint64(s.name[0])+w.random.Uint64()>>8)))
	s.status = map[string]Status{}
	s.core.Set(w.now, s.wants)
	w.after(s)
}

// want sets a side's configuration.
func (w *world) want(s *side, configs map[string]Config) {
	s.wants = configs
	s.core.Set(w.now, configs)
	maps.DeleteFunc(s.status, func(name string, _ Status) bool { _, ok := configs[name]; return !ok })
	w.after(s)
}

// after processes a core's output.
func (w *world) after(s *side) {
	changed := s.core.Changed()
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		w.change(s, name, s.status[name], changed[name])
		s.status[name] = changed[name]
	}
	keys := map[uint32]Key{}
	s.core.Sessions(func(d uint32, k Key, _ []string) { keys[d] = k })
	for _, out := range s.core.Out() {
		p := out.Packet
		w.sent(s, p)
		lost := w.cut[s.name] || w.random.Float64() < w.loss
		w.log("%s sends %s%s", s.name, describe(p), map[bool]string{true: ", lost"}[lost])
		if lost {
			continue
		}
		at := w.now.Add(w.delay + time.Duration(w.random.Int64N(int64(w.spread)+1)))
		w.flight = append(w.flight, flight{at, s.peer, Datagram{Source: s.addr, Local: s.peer.addr, Interface: "eth0", TTL: s.ttl,
			MultiHop: keys[out.Session].MultiHop, Data: p.Append(nil)}})
	}
}

func (w *world) change(s *side, name string, was, is Status) {
	if was.State != is.State {
		w.log("%s %s: %s%s", s.name, name, is.State, map[bool]string{true: ", " + string(is.Reason)}[is.Reason != ""])
	}
	if is.Transmit != was.Transmit || is.Detection != was.Detection {
		w.log("%s %s: sends each %v, detects in %v", s.name, name, is.Transmit, is.Detection)
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
func (w *world) deliver(f flight) Result {
	r := f.to.core.Receive(w.now, f.in)
	if r.Drop == Accepted {
		f.to.received = w.now
		p, _ := Parse(f.in.Data)
		w.accepted(f.to, p)
	} else {
		w.log("%s drops it: %s", f.to.name, r.Drop)
	}
	w.after(f.to)
	return r
}

// run advances time; check is called after each step.
func (w *world) run(d time.Duration, check func()) {
	end := w.now.Add(d)
	for {
		next := end
		for _, f := range w.flight {
			next = earliest(next, f.at)
		}
		for _, s := range w.sides {
			next = earliest(next, s.core.Next())
		}
		if next.After(w.now) { // a new configuration may have something due in the past
			w.now = next
		}
		if due := slices.IndexFunc(w.flight, func(f flight) bool { return !f.at.After(w.now) }); due >= 0 {
			f := w.flight[due]
			w.flight = slices.Delete(w.flight, due, due+1)
			w.deliver(f)
		} else {
			for _, name := range []string{"a", "b"} {
				w.sides[name].core.Tick(w.now)
				w.after(w.sides[name])
			}
			if !w.now.Before(end) {
				return
			}
		}
		if check != nil {
			check()
		}
	}
}

// until advances time until a condition holds, and returns how long that took.
func (w *world) until(what string, limit time.Duration, ok func() bool) time.Duration {
	w.t.Helper()
	from := w.now
	for !ok() {
		if w.now.Sub(from) >= limit {
			w.t.Fatalf("%s: not within %v; a %+v; b %+v", what, limit, w.sides["a"].status, w.sides["b"].status)
		}
		w.run(time.Millisecond, nil)
	}
	return w.now.Sub(from)
}

func (s *side) state() string { return string(s.status["x"].State) }

// pair configures a session with the other side on both, named x.
func (w *world) pair(conf func(name string) Config) {
	for _, name := range []string{"a", "b"} {
		s := w.sides[name]
		c := conf(name)
		c.Peer = s.peer.addr
		w.want(s, map[string]Config{"x": c})
	}
}
