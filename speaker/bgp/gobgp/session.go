package gobgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// session is the state of the peer's session. GoBGP calls it with its own locks held, so it makes no calls.
type session struct {
	mu          sync.Mutex
	wake        chan struct{}
	next        time.Time // latest time of the next evaluation
	initialPace time.Duration
	held        bool // the peer is in GoBGP
	peer        routes.Peer

	state        routes.SessionState // as in GoBGP
	since        time.Time           // when it entered that state
	shown        routes.Session
	lastReported routes.Session // in the last report
	// down is why the session last went down, fail why it does not come up.
	down, fail cause
	// pending is the reason that GoBGP logged for the ending attempt or session, expected the reason of an end by this
	// driver.
	pending, expected cause
	// peerASN and peerID are from the last OPEN.
	peerASN uint32
	peerID  netip.Addr
	// asnChanged is set if the router has another AS than it sent when it was queried.
	asnChanged bool
	// broken is set by GoBGP's log entry that a session with graceful restart ended in a way that makes the router wait
	// for the next one (RFC 4724, 4.2). lost is set once the session has ended and this driver has not ended it.
	broken, lost bool
	// overLimit is set once the router has announced too many prefixes: further events of the session are ignored.
	overLimit bool
	// refusalUnknown is set if the router refuses and GoBGP does not expose the reason; queriedAt is when the router
	// was last queried.
	refusalUnknown bool
	queriedAt      time.Time
	pace
	// noHost is when it was last found that no host answers at the address.
	noHost time.Time
}

// cause is why a session is not up.
type cause struct {
	reason  view.Reason
	message string
}

// settled is the minimum duration of a transitional state before it is shown: a retry passes through several in an
// instant.
const settled = 3 * time.Second

func newSession() *session {
	now := time.Now()
	return &session{wake: make(chan struct{}, 1), initialPace: initialPace, state: routes.SessionIdle, since: now,
		shown: routes.Session{State: routes.SessionIdle, Since: now}}
}

func (s *session) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// schedule schedules an evaluation of the sessions at a time.
func (s *session) schedule(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dueBy(at)
	s.wakeRun()
}

func (s *session) dueBy(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// hold records that the peer is about to be added to GoBGP.
func (s *session) hold(p routes.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer, s.pending, s.expected, s.fail, s.overLimit, s.held = p, cause{}, cause{}, cause{}, false, true
	s.fresh(time.Now().Add(s.initialPaceFor(p)))
	s.wakeRun()
}

// reconfigured records the configuration of the peer that is about to change in place.
func (s *session) reconfigured(p routes.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer = p
}

// key returns GoBGP's name of the peer, if it is in GoBGP.
func (s *session) key() (key string, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer.Address.String(), s.held
}

// is reports whether this is GoBGP's name of the peer, and the peer is in GoBGP. s.mu must be held.
func (s *session) is(key string) bool { return s.held && address(key) == s.peer.Address.WithZone("") }

// established reports whether the session is up.
func (s *session) established() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == routes.SessionEstablished
}

// release records that the peer is no longer in GoBGP.
func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		s.setState(routes.SessionIdle)
		s.held, s.asnChanged, s.pace = false, false, pace{}
	}
	s.wakeRun()
}

// fails records why the session does not come up.
func (s *session) fails(reason view.Reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = cause{reason, message}
	s.wakeRun()
}

// expect records that this driver is about to end the session, and why.
func (s *session) expect(reason view.Reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held && s.state == routes.SessionEstablished {
		s.expected = cause{reason, message}
	}
}

// count records how many prefixes the peer receives.
func (s *session) count(prefixes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown.Prefixes = prefixes
	s.wakeRun()
}

func address(key string) netip.Addr {
	a, err := netip.ParseAddr(key)
	if err != nil {
		return netip.Addr{}
	}
	return a.WithZone("").Unmap()
}

var states = map[api.PeerState_SessionState]routes.SessionState{
	api.PeerState_IDLE: routes.SessionIdle, api.PeerState_CONNECT: routes.SessionConnect, api.PeerState_ACTIVE: routes.SessionActive,
	api.PeerState_OPENSENT: routes.SessionOpenSent, api.PeerState_OPENCONFIRM: routes.SessionOpenConfirm, api.PeerState_ESTABLISHED: routes.SessionEstablished,
}

// event processes a state change from GoBGP.
func (s *session) event(r *api.WatchEventResponse) {
	p := r.GetPeer().GetPeer().GetState()
	if p == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state := states[p.SessionState]
	if !s.is(p.NeighborAddress) || state == "" || s.overLimit {
		return
	}
	if state == routes.SessionOpenConfirm || state == routes.SessionEstablished {
		s.peerASN = p.PeerAsn
		s.peerID, _ = netip.ParseAddr(p.RouterId)
	}
	if state == routes.SessionIdle && s.state == routes.SessionActive && !s.until.IsZero() {
		return // a pause between two attempts, which is shown as Active
	}
	s.setState(state)
	s.wakeRun()
}

// setState records a new state. s.mu must be held.
func (s *session) setState(state routes.SessionState) {
	before, since, now := s.state, s.since, time.Now()
	if state == before {
		return
	}
	s.state, s.since = state, now
	switch {
	case state == routes.SessionEstablished:
		s.fail, s.pending, s.expected, s.refusalUnknown, s.broken, s.lost = cause{}, cause{}, cause{}, false, false, false
		s.shown.State, s.shown.Since = state, now
		s.shown.PeerASN, s.shown.PeerID = s.peerASN, s.peerID
		s.shown.Changes++
	case before == routes.SessionEstablished:
		s.down, s.lost = s.pending, s.broken && s.expected.reason == ""
		if s.failed = now; s.expected.reason != "" || now.Sub(since) >= steady {
			s.fresh(now.Add(s.initialPaceFor(s.peer)))
		}
		if s.expected.reason != "" {
			s.down = s.expected
		}
		s.fail, s.pending, s.expected = s.down, cause{}, cause{}
		s.shown.State, s.shown.Since = routes.SessionIdle, now
	case state == routes.SessionIdle:
		if before == routes.SessionOpenSent || before == routes.SessionOpenConfirm {
			s.failed = now
		}
		if s.pending.reason != "" {
			s.fail, s.pending = s.pending, cause{}
		}
	}
}

// show updates the shown state and returns when it may change by time only, the zero time if it does not.
func (s *session) show(now time.Time) (recheck time.Time) {
	if s.state != routes.SessionEstablished && s.shown.State != s.state {
		if recheck = s.since.Add(settled); !recheck.After(now) {
			s.shown.State, recheck = s.state, time.Time{}
		}
	}
	if s.shown.State == routes.SessionOpenSent && (s.fail.reason == "" || s.fail == s.down) { // why the last one ended is not why there is none
		s.fail = cause{routes.NoAnswer, "the router accepts the connection and sends nothing: check ttlSecurity on both sides"}
	}
	why := s.fail
	if s.state == routes.SessionEstablished {
		why = s.down
	}
	s.shown.Reason, s.shown.Message = why.reason, why.message
	return recheck
}

// transition is a change of the session, for the log.
type transition struct{ was, now routes.Session }

// changed returns the change since the last call, and whether there is one.
func (s *session) changed(now time.Time) (t transition, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if recheck := s.show(now); !recheck.IsZero() {
		s.dueBy(recheck)
	}
	t = transition{s.lastReported, s.shown}
	s.lastReported = s.shown
	return t, t.now != t.was
}

// GoBGP stores the announcements of a router before it applies the import policy, which accepts nothing (handleUpdate
// in its peer.go). So the number of prefixes is limited. One more ends the session (RFC 4486, 4: Cease, subcode 1), and
// the peer stays idle (adminStatePfxCt in its fsm.go). GoBGP continues to store what it has read by then, slower with
// each UPDATE, and reports the end of the session only after that. So the session counts as ended at once, and the
// process is replaced.

// prefixLimit is the number of prefixes that a router may announce in each family.
func prefixLimit(p routes.Peer) uint32 { return cmp.Or(p.MaxReceivedPrefixes, maxReceivedPrefixes) }

// limitReached records that GoBGP ends the session for the number of prefixes of a family. s.mu must be held.
func (s *session) limitReached(family string) {
	if s.overLimit {
		return
	}
	s.overLimit = true
	// The session is established, but GoBGP's event may not have arrived yet.
	s.setState(routes.SessionEstablished)
	names := map[string]string{"ipv4-unicast": "IPv4", "ipv6-unicast": "IPv6"} // GoBGP's
	s.pending = cause{routes.TooManyPrefixes, fmt.Sprintf("the router announced more than %d %s prefixes "+
		"(maxReceivedPrefixes): announce fewer to this node, which uses none, or raise maxReceivedPrefixes",
		prefixLimit(s.peer), cmp.Or(names[family], family))}
	s.setState(routes.SessionIdle)
}
