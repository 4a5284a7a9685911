package bfd

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// stateAfter is the table of RFC 5880, 6.8.6: the state after a packet with the remote state.
func stateAfter(local, remote State) State {
	switch {
	case local == AdminDown:
		return AdminDown
	case remote == AdminDown || local == Up && remote == Down:
		return Down
	case remote == Down:
		return Init
	case local == Down && remote == Up:
		return Down
	}
	return Up
}

// FuzzStateMachine: after any packets, silences and changes of the configuration the state follows RFC 5880, 6.8.6, no
// session is up after its detection time, and every packet is one that 6.8.7 allows. Each step is an octet that selects
// it and PacketLen octets.
func FuzzStateMachine(f *testing.F) {
	step := func(kind byte, p Packet) []byte { return p.Append([]byte{kind}) }
	from := func(state State) Packet {
		return Packet{State: state, Multiplier: 3, My: 7, DesiredTx: time.Second, RequiredRx: time.Second}
	}
	var up []byte
	for _, state := range []State{Down, Init, Up, AdminDown} {
		up = append(up, step(5, from(state))...)
	}
	f.Add(up)
	f.Add(append(append(up[:3*(PacketLen+1):3*(PacketLen+1)], step(0, Packet{DesiredTx: 9 * time.Second})...), step(1, Packet{Multiplier: 9})...))
	f.Add(append(step(2, Packet{}), step(5, from(Down))...))
	f.Fuzz(func(t *testing.T, script []byte) {
		peer, now := netip.MustParseAddr("192.0.2.1"), time.Unix(1, 0)
		conf := Config{Peer: peer, Timers: view.BFD{Receive: 300 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 3}}
		c := NewCore(true, rand.New(rand.NewPCG(1, 2)))
		c.Set(now, map[string]Config{"x": conf})
		for ; len(script) > PacketLen; script = script[PacketLen+1:] {
			data := script[1 : PacketLen+1]
			switch script[0] % 8 {
			case 0: // a silence
				until := now.Add(time.Duration(data[15]) * 100 * time.Millisecond)
				for next, ticks := c.Next(), 0; !next.IsZero() && !next.After(until); next = c.Next() {
					if ticks++; next.After(now) {
						ticks = 0
					} else if ticks > 2 { // one more after a change of the interval
						t.Fatalf("the next tick at %v is due at %v", now, next)
					}
					now = next
					c.Tick(now)
				}
				now = until
				c.Tick(now)
			case 1: // other timers
				conf.Timers = view.BFD{Receive: time.Duration(1+data[8]) * time.Millisecond, Transmit: time.Duration(1+data[9]) * time.Millisecond,
					Multiplier: max(1, data[2]), Passive: data[3]&1 != 0}
				c.Set(now, map[string]Config{"x": conf})
			case 2: // removed
				c.Set(now, nil)
			case 3:
				c.Set(now, map[string]Config{"x": conf})
			case 4:
				for discr := range c.byDiscr {
					c.ResetRemote(now, discr)
				}
			default:
				if len(c.sessions) == 0 {
					continue
				}
				s := c.sessions[0]
				before := s.state
				if script[0]&0x80 != 0 { // as the peer that has received this side
					data = append([]byte{}, data...)
					data[8], data[9], data[10], data[11] = byte(s.localDiscr>>24), byte(s.localDiscr>>16), byte(s.localDiscr>>8), byte(s.localDiscr)
				}
				result := c.Receive(now, Datagram{Source: peer, TTL: 255, Data: data})
				want := before
				if result.Drop == Accepted {
					want = stateAfter(before, State(data[1]>>6))
				}
				if s.state != want {
					t.Fatalf("%v and a packet %x (%q): %v, want %v", before, data, result.Drop, s.state, want)
				}
			}
			for _, out := range c.Out() {
				p := out.Packet
				if p.Poll && p.Final || p.My == 0 || p.Multiplier == 0 || p.Demand || p.Multipoint || p.Authenticated || p.State != Up && p.DesiredTx < slow {
					t.Fatalf("sends %+v", p)
				}
			}
			for _, s := range c.sessions {
				if silence := now.Sub(s.lastRx); s.state == Up && s.detection() > 0 && silence > s.detection() {
					t.Fatalf("up after %v of silence, the detection time is %v", silence, s.detection())
				}
			}
		}
	})
}
