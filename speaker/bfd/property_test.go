package bfd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// timers returns random timers.
func timers(r *rand.Rand) view.BFD {
	one := func() time.Duration { return time.Duration(10+r.IntN(1500)) * time.Millisecond }
	return view.BFD{Receive: one(), Transmit: one(), Multiplier: uint8(1 + r.IntN(6))}
}

// checkedFixture checks the rules of each packet and state during a run.
type checkedFixture struct {
	*fixture
	last map[*side]Packet
	when map[*side]time.Time
}

func checked(t *testing.T, seed uint64) *checkedFixture {
	f := &checkedFixture{newFixture(t, seed), map[*side]Packet{}, map[*side]time.Time{}}
	f.sent = f.packet
	return f
}

// packet checks a sent packet: RFC 5880, 6.8.3 and 6.8.7.
func (f *checkedFixture) packet(s *side, p Packet) {
	last, when := f.last[s], f.when[s]
	switch {
	case p.Poll && p.Final:
		f.t.Errorf("%s sends P and F", s.name)
	case p.My == 0 || p.Multiplier == 0 || p.RequiredEchoRx != 0 || p.Demand || p.Multipoint || p.Authenticated:
		f.t.Errorf("%s sends %+v", s.name, p)
	case p.State != Up && p.DesiredTx < time.Second:
		f.t.Errorf("%s wants to send each %v though it is %v", s.name, p.DesiredTx, p.State)
	}
	if p.Final {
		return
	}
	// A packet with the same content as the last one is periodic: it keeps the negotiated interval, less the jitter.
	// The negotiated interval depends on the state of both sides, so only a side's own desired interval is checked
	// here.
	if p.Poll = false; p == last && f.now.Sub(when) < p.DesiredTx*3/4 && f.steady(s) {
		f.t.Errorf("%s sends after %v, and wants to each %v", s.name, f.now.Sub(when), p.DesiredTx)
	}
	f.last[s], f.when[s] = p, f.now
}

// steady reports whether a side's desired interval is in force: no poll, and no new configuration.
func (f *checkedFixture) steady(s *side) bool {
	session := s.core.sessions[0]
	return !session.poll.active && !session.poll.wait && session.usedTx == session.desiredTx
}

// TestNeverUpWithADeadPeer: a session is up only while the silence is shorter than its reported detection time, and
// goes down exactly then. That time is at most what the peer may rely on (6.8.4), whatever the timers, their changes,
// losses and restarts.
func TestNeverUpWithADeadPeer(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			f := checked(t, seed)
			r := f.random
			f.delay, f.spread = time.Duration(r.IntN(20))*time.Millisecond, time.Duration(r.IntN(10))*time.Millisecond
			f.loss = []float64{0, 0, .05, .3}[r.IntN(4)]
			f.pair(func(string) Config { return Config{Timers: timers(r)} })
			check := func() {
				for _, s := range f.sides {
					is := s.status["x"]
					silence := f.now.Sub(s.received)
					if is.State == view.BFDUp && silence >= is.Detection {
						t.Fatalf("%v: %s is up after %v of silence: %+v", f.now.Sub(f.start), s.name, silence, is)
					}
					if is.Since.Equal(f.now) && is.State == view.BFDDown && is.Reason == Expired && is.Detected != silence {
						t.Fatalf("%s went down after %v, it reports %v", s.name, silence, is.Detected)
					}
				}
			}
			for range 30 {
				s := f.sides[[]string{"a", "b"}[r.IntN(2)]]
				switch r.IntN(8) {
				case 0:
					f.cut[s.name] = true
				case 1, 2:
					clear(f.cut)
				case 3:
					f.boot(s)
				case 4, 5:
					f.want(s, map[string]Config{"x": {Peer: s.peer.addr, Timers: timers(r)}})
				}
				f.run(time.Duration(r.IntN(5000))*time.Millisecond, check)
			}
			// Now dead: neither side is up after its detection time.
			f.cut["a"], f.cut["b"] = true, true
			bound := max(f.sides["a"].status["x"].Detection, f.sides["b"].status["x"].Detection)
			f.run(f.delay+f.spread, check)
			bound = max(bound, f.sides["a"].status["x"].Detection, f.sides["b"].status["x"].Detection)
			f.run(bound, check)
			for _, s := range f.sides {
				if s.state() == "Up" {
					t.Errorf("%s is up with a dead peer", s.name)
				}
			}
			// It comes back: within a slow packet of each and the trips, because no packets are lost now.
			clear(f.cut)
			f.loss = 0
			f.until("up", 10*time.Second, func() bool { return f.sides["a"].state() == "Up" && f.sides["b"].state() == "Up" })
		})
	}
}

// TestNoFalseAlarm: if no packet is lost, a session that is up stays up through any change of the timers at any time;
// the delayed application of 6.8.3 ensures that. A trip's delay may vary by what the jitter leaves.
func TestNoFalseAlarm(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			f := checked(t, seed)
			r := f.random
			f.delay = time.Duration(r.IntN(40)) * time.Millisecond
			f.pair(func(string) Config { return Config{Timers: timers(r)} })
			up := func() bool { return f.sides["a"].state() == "Up" && f.sides["b"].state() == "Up" }
			f.until("up", 10*time.Second, up)
			for range 60 {
				s := f.sides[[]string{"a", "b"}[r.IntN(2)]]
				f.want(s, map[string]Config{"x": {Peer: s.peer.addr, Timers: timers(r)}})
				f.run(time.Duration(r.IntN(3000))*time.Millisecond*time.Duration(r.IntN(2)), func() {
					if !up() {
						t.Fatalf("%v: a %+v; b %+v", f.now.Sub(f.start), f.sides["a"].status["x"], f.sides["b"].status["x"])
					}
				})
			}
			// In the end both sides use the negotiated timers, and no poll is active.
			f.run(10*time.Second, nil)
			a, b := f.sides["a"].core.sessions[0], f.sides["b"].core.sessions[0]
			for _, s := range []*session{a, b} {
				if s.poll != (poll{}) || s.usedTx != s.conf.Timers.Transmit || s.usedRx != s.conf.Timers.Receive {
					t.Errorf("a poll continues: %+v", s)
				}
			}
			if got, want := a.interval(), max(a.conf.Timers.Transmit, b.conf.Timers.Receive); got != want {
				t.Errorf("a sends each %v, want %v", got, want)
			}
			if got, want := b.detection(), time.Duration(a.conf.Timers.Multiplier)*a.interval(); got != want {
				t.Errorf("b detects in %v, want %v", got, want)
			}
		})
	}
}

// TestDetectionBound: a dead peer is detected after at most the detection time plus a one-way trip, counted from its
// death (6.8.4).
func TestDetectionBound(t *testing.T) {
	const interval, multiplier, trip = 100 * time.Millisecond, 3, 5 * time.Millisecond
	for seed := range uint64(200) {
		f := checked(t, seed)
		f.delay = trip
		f.pair(func(string) Config {
			return Config{Timers: view.BFD{Receive: interval, Transmit: interval, Multiplier: multiplier}}
		})
		f.run(2*time.Second+time.Duration(f.random.IntN(1000))*time.Millisecond, nil)
		f.cut["a"] = true
		took := f.until("down", time.Second, func() bool { return f.sides["b"].state() == "Down" })
		if least, most := (multiplier-1)*interval, multiplier*interval+trip; took < least || took > most+time.Millisecond {
			t.Errorf("seed %d: found after %v, want %v to %v", seed, took, least, most)
		}
	}
}

// TestDiscriminators: discriminators are unique and not 0.
func TestDiscriminators(t *testing.T) {
	f := newFixture(t, 1)
	configs := map[string]Config{}
	addr := f.sides["a"].peer.addr
	for i := range 1000 {
		addr = addr.Next()
		configs[fmt.Sprint(i)] = Config{Peer: addr, Timers: view.BFD{Receive: time.Second, Transmit: time.Second, Multiplier: 3}}
	}
	f.want(f.sides["a"], configs)
	seen := map[uint32]bool{0: true}
	f.sides["a"].core.Sessions(func(d uint32, _ Key, _ []string) {
		if seen[d] {
			t.Errorf("discriminator %d twice or 0", d)
		}
		seen[d] = true
	})
	if len(seen) != 1001 {
		t.Errorf("%d discriminators", len(seen)-1)
	}
}
