package bgp

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"testing"

	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestMerged: however messages are merged, the other side reaches the same state.
func TestMerged(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		var want, got plan.BGP
		wantSessions, gotSessions := map[string]plan.Session{}, map[string]plan.Session{}
		l, applied := newLink(NewConn(&net.UnixConn{})), uint64(0)
		send := func() {
			for m, ok := l.next(); ok; m, ok = l.next() {
				if m.Change != nil {
					got.Apply(*m.Change)
				} else {
					applyReport(gotSessions, *m.Report)
					applied = max(applied, m.Report.Applied)
				}
			}
		}
		for i := range 30 {
			c, rep := randomChange(r, i == 0), randomReport(r, i == 0)
			if i < 25 {
				c.Serial, rep.Applied = uint64(i), uint64(i)
			}
			want.Apply(c)
			l.sendChange(c)
			applyReport(wantSessions, rep)
			l.sendReport(rep)
			if r.IntN(4) == 0 {
				send()
			}
		}
		send()
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: it got\n%v, want\n%v", seed, got, want)
		}
		if !reflect.DeepEqual(gotSessions, wantSessions) {
			t.Fatalf("seed %d: it got\n%v, want\n%v", seed, gotSessions, wantSessions)
		}
		if got.Serial != 24 || applied != 24 {
			t.Fatalf("seed %d: it got the change %d and the report of %d, want 24", seed, got.Serial, applied)
		}
		var again plan.BGP
		again.Apply(fullChange(want))
		if !reflect.DeepEqual(again, want) {
			t.Fatalf("seed %d: the full set is\n%v, want\n%v", seed, again, want)
		}
	}
}

// TestUrgentFirst: Down is sent before all other pending messages.
func TestUrgentFirst(t *testing.T) {
	l := newLink(NewConn(&net.UnixConn{}))
	l.sendChange(plan.BGPChange{Full: true})
	l.sendUrgent(Message{Down: &Down{Peer: "a"}})
	if m, ok := l.next(); !ok || m.Down == nil {
		t.Errorf("first comes %+v", m)
	}
	if m, ok := l.next(); !ok || m.Change == nil {
		t.Errorf("then comes %+v", m)
	}
	if m, ok := l.next(); ok {
		t.Errorf("then comes %+v", m)
	}
}

func randomChange(r *rand.Rand, full bool) plan.BGPChange {
	c := plan.BGPChange{
		Full: full || r.IntN(8) == 0, RouterID: netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(3) + 1)}), NodeDecommissioning: r.IntN(2) == 0,
		Peers: map[string]*plan.Peer{}, Routes: map[netip.Prefix]plan.Route{},
	}
	for _, name := range []string{"a", "b", "c"} {
		switch r.IntN(4) {
		case 0:
			if !c.Full {
				c.Peers[name] = nil
			}
		case 1:
			c.Peers[name] = &plan.Peer{Address: addr("192.0.2.254"), PeerASN: uint32(r.IntN(100))}
		}
	}
	for i := range 5 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 32)
		switch r.IntN(4) {
		case 0:
			if !c.Full {
				c.Routes[p] = nil
			}
		case 1:
			c.Routes[p] = plan.Route{"a": view.Attributes{LocalPref: uint32(r.IntN(100))}}
		}
	}
	return c
}

func randomReport(r *rand.Rand, full bool) plan.BGPReport {
	rep := plan.BGPReport{Full: full || r.IntN(8) == 0, Sessions: map[string]*plan.Session{}}
	for _, name := range []string{"a", "b", "c"} {
		switch r.IntN(3) {
		case 0:
			if !rep.Full {
				rep.Sessions[name] = nil
			}
		case 1:
			rep.Sessions[name] = &plan.Session{Prefixes: r.IntN(100)}
		}
	}
	return rep
}
