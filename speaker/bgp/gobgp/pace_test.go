package gobgp

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	golog "github.com/osrg/gobgp/v3/pkg/log"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/bench/capture"
)

// tried is a session with a router played by this test, at GoBGP's own pace: an attempt each connectTime, except during
// pauses.
type tried struct {
	*session
	t *testing.T
}

const triedKey = "198.51.100.1"

func newTried(t *testing.T, connect time.Duration) *tried {
	s := &tried{newSession(), t}
	s.hold(routes.Peer{Address: addr(triedKey), Port: 179, ConnectTime: connect})
	return s
}

// is sends GoBGP's event of a session state.
func (s *tried) is(state api.PeerState_SessionState) {
	s.event(&api.WatchEventResponse{Event: &api.WatchEventResponse_Peer{Peer: &api.WatchEventResponse_PeerEvent{
		Peer: &api.Peer{State: &api.PeerState{NeighborAddress: triedKey, SessionState: state}}}}})
}

// fails makes an attempt fail, and returns the following pause: 0 if there is none.
func (s *tried) fails(refused bool) time.Duration {
	s.t.Helper()
	s.is(api.PeerState_ACTIVE)
	if refused {
		s.is(api.PeerState_OPENSENT)
		s.is(api.PeerState_IDLE)
	} else {
		s.handleLog("failed to connect", golog.Fields{"Key": triedKey, "Error": errors.New("refused")})
	}
	if !s.duePause(time.Now()) {
		return 0
	}
	if s.duePause(time.Now()) {
		s.t.Error("two pauses after one attempt")
	}
	before := s.state
	s.is(api.PeerState_IDLE) // it is disabled
	if after := s.state; after != before {
		s.t.Errorf("a peer that rests is shown as %v, was %v", after, before)
	}
	began := time.Now()
	for {
		if s.endedPause(time.Now()) {
			s.is(api.PeerState_IDLE) // it is added again
			return time.Since(began)
		}
		next := s.due()
		if next.IsZero() {
			s.t.Fatal("it rests for ever")
		}
		time.Sleep(time.Until(next))
	}
}

// up makes the session come up for a duration and then end.
func (s *tried) up(lasts time.Duration) {
	s.is(api.PeerState_ACTIVE)
	s.is(api.PeerState_ESTABLISHED)
	time.Sleep(lasts)
	s.is(api.PeerState_IDLE)
}

// initially makes attempts fail for a time in which there must be no pause.
func (s *tried) initially(every, lasts time.Duration) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < lasts; time.Sleep(every) {
		if paused := s.fails(false); paused != 0 {
			s.t.Fatalf("paused for %v after %v", paused, time.Since(began))
		}
	}
}

// TestPace: a minute at GoBGP's own pace, then pauses that double each time, up to a minute, with up to a quarter less.
func TestPace(t *testing.T) {
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newTried(t, 5*time.Second)
			grows := func() {
				t.Helper()
				for n, want := range []time.Duration{10, 20, 40, 60, 60} {
					want *= time.Second
					if paused := s.fails(refused); paused > want || paused < want*3/4 {
						t.Errorf("pause %d lasts %v, want %v to %v", n+1, paused, want*3/4, want)
					}
				}
			}
			s.initially(5*time.Second, initialPace)
			grows()
			s.up(steady) // and then lost
			s.initially(5*time.Second, initialPace)
			grows()
			s.hold(routes.Peer{Address: addr(triedKey), Port: 179, ConnectTime: 5 * time.Second}) // changed
			s.initially(5*time.Second, initialPace)
			grows()
			s.expectUp(routes.BFDWentDown)
			s.initially(5*time.Second, initialPace)
			grows()
			// With graceful restart a router keeps the routes for that long.
			s.hold(routes.Peer{Address: addr(triedKey), Port: 179, ConnectTime: 5 * time.Second, GracefulRestart: true, RestartTime: 2 * initialPace})
			s.initially(5*time.Second, 2*initialPace)
			grows()
		})
	}
}

// expectUp makes a session come up for a moment and go down by this side.
func (s *tried) expectUp(why view.Reason) {
	s.is(api.PeerState_ACTIVE)
	s.is(api.PeerState_ESTABLISHED)
	s.expect(why, "words")
	s.is(api.PeerState_IDLE)
}

// TestPaceOfFlapping: a session that breaks as soon as it is up is paced like one that does not come up.
func TestPaceOfFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTried(t, 5*time.Second)
		s.initially(5*time.Second, initialPace)
		for n, want := range []time.Duration{10, 20, 40, 60} {
			s.is(api.PeerState_ACTIVE)
			s.is(api.PeerState_ESTABLISHED)
			time.Sleep(steady - time.Second)
			s.is(api.PeerState_IDLE)
			if !s.duePause(time.Now()) {
				t.Fatalf("no pause after session %d", n+1)
			}
			until := s.until
			if paused := time.Until(until); paused > want*time.Second || paused < want*time.Second*3/4 {
				t.Errorf("pause %d lasts %v, want up to %d s", n+1, paused, want)
			}
			time.Sleep(time.Until(until))
			if !s.endedPause(time.Now()) {
				t.Fatal("the pause has not ended")
			}
		}
	})
}

// TestPaceUp: a path that BFD finds working again ends the pause at once; connectTime is the minimum.
func TestPaceUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTried(t, 5*time.Minute)
		s.initially(5*time.Minute, initialPace)
		s.is(api.PeerState_ACTIVE)
		s.handleLog("failed to connect", golog.Fields{"Key": triedKey, "Error": errors.New("refused")})
		if !s.duePause(time.Now()) {
			t.Fatal("no pause")
		}
		if paused := time.Until(s.until); paused < 225*time.Second || paused > 5*time.Minute {
			t.Errorf("paused for %v", paused)
		}
		s.retryNow()
		if !s.endedPause(time.Now()) {
			t.Error("the pause has not ended")
		}
		s.initially(time.Second, initialPace)
	})
}

// TestPaceOfTries: the attempts as seen by a router, for one that is unreachable and one that is refused. A change ends
// the pause.
func TestPaceOfTries(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		const port = 1790
		r.neighbors(t, r.neighbor())
		closed := watch(t, f.node, func(p capture.Packet) bool {
			return !p.Outgoing && p.From == netip.AddrPortFrom(r.router6, port) // RSTs
		})
		opened := watch(t, f.node, func(p capture.Packet) bool {
			return p.Outgoing && p.To == netip.AddrPortFrom(r.link.router, 179) && len(p.Payload) > 18 && p.Payload[18] == bgp.BGP_MSG_OPEN
		})
		d := startNode(t, f.node)
		d.order(t, order{InitialPace: 500 * time.Millisecond})
		wrong, refused := r.peer(), r.peer6()
		wrong.PeerASN, refused.Port = 65099, port
		_, queried := r.pair(t, f, 0, false)
		queried.Port, queried.PeerASN, queried.Dynamic = port, 0, view.AnyExternal
		queries := watch(t, f.node, func(p capture.Packet) bool { return !p.Outgoing && p.From == netip.AddrPortFrom(queried.Address, port) })
		d.apply(t, wanted(map[string]routes.Peer{"wrong": wrong, "refused": refused, "queried": queried}, nil))
		// It pauses for 2, 4 and 8 s, up to a quarter less, and GoBGP then waits for one second to two, on a busy machine more.
		paced := func(what string, gaps []time.Duration, wait time.Duration) {
			t.Helper()
			for i, paused := range []time.Duration{2, 4, 8} {
				if least, most := paused*time.Second*3/4+wait, paused*time.Second+2*wait+3*time.Second; gaps[i] < least || gaps[i] > most {
					t.Errorf("%s: tried %v apart; the %dth is to be of %v to %v", what, gaps, i+1, least, most)
				}
			}
		}
		paced("an OPEN of the wrong AS", opened.gaps(t, "an OPEN of the wrong AS", time.Time{}, 4), time.Second)
		paced("a closed port", closed.gaps(t, "a closed port", time.Time{}, 4), time.Second)
		paced("a closed port that is queried for its AS", queries.gaps(t, "queried", time.Time{}, 5)[1:], 0) // the first is at once
		wrong.PeerASN = routerASN
		changed := time.Now()
		d.apply(t, routes.Change{RouterID: nodeID, Peers: map[string]*routes.Peer{"wrong": &wrong}})
		d.up(t, "wrong")
		if took := time.Since(changed); took > 7*time.Second {
			t.Errorf("up only %v after it was repaired", took)
		}
		if s, _ := d.has("refused"); s.State != routes.SessionActive || s.Reason != routes.Refused {
			t.Errorf("a peer that rests after it was refused is %+v", s)
		}
	})
}
