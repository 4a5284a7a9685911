package gobgp

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// sessions is the state of all configured peers' sessions. GoBGP calls it with its own locks held, so it makes no
// calls.
type sessions struct {
	mu          sync.Mutex
	byName      map[string]*session
	byAddr      map[netip.Addr]*session // of peers in GoBGP, without zone
	gone        []string
	next        time.Time // latest time of the next evaluation
	wake        chan struct{}
	initialPace time.Duration
}

// session is the state of one peer's session.
type session struct {
	name         string
	peer         plan.Peer
	state        plan.SessionState // as in GoBGP
	since        time.Time         // when it entered that state
	shown        plan.Session
	lastReported plan.Session // in the last report
	// first is set until it is in a report.
	first bool
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

func newSessions() *sessions {
	return &sessions{byName: map[string]*session{}, byAddr: map[netip.Addr]*session{}, wake: make(chan struct{}, 1), initialPace: initialPace}
}

func (s *sessions) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// schedule schedules an evaluation of the sessions at a time.
func (s *sessions) schedule(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dueBy(at)
	s.wakeRun()
}

func (s *sessions) dueBy(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// named returns the session of a peer, and creates it if there is none.
func (s *sessions) named(name string) *session {
	x := s.byName[name]
	if x == nil {
		now := time.Now()
		x = &session{name: name, state: plan.SessionIdle, since: now, first: true, shown: plan.Session{State: plan.SessionIdle, Since: now}}
		s.byName[name] = x
		s.gone = slices.DeleteFunc(s.gone, func(n string) bool { return n == name })
	}
	return x
}

// hold records that a peer is about to be added to GoBGP.
func (s *sessions) hold(key, name string, p plan.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.named(name)
	x.peer, x.pending, x.expected, x.fail, x.overLimit = p, cause{}, cause{}, cause{}, false
	x.fresh(time.Now().Add(s.initialPaceFor(p)))
	s.byAddr[address(key)] = x
	s.wakeRun()
}

// reconfigured records the configuration of a peer that is about to change in place.
func (s *sessions) reconfigured(key string, p plan.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.byAddr[address(key)]; x != nil {
		x.peer = p
	}
}

// key returns GoBGP's name of a peer in GoBGP.
func (s *sessions) key(name string) (key string, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.byName[name]
	if x == nil {
		return "", false
	}
	key = x.peer.Address.String()
	return key, s.byAddr[address(key)] == x
}

// established reports whether a peer's session is up.
func (s *sessions) established(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.byName[name]
	return x != nil && x.state == plan.SessionEstablished
}

// release records that a peer is no longer in GoBGP, although it may still be configured.
func (s *sessions) release(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	addr := address(key)
	if x := s.byAddr[addr]; x != nil {
		s.setState(x, plan.SessionIdle)
		x.asnChanged, x.pace = false, pace{}
		delete(s.byAddr, addr)
	}
	s.wakeRun()
}

// remove records that a peer is no longer configured.
func (s *sessions) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.byName[name]; x != nil && !x.first {
		s.gone = append(s.gone, name)
	}
	delete(s.byName, name)
	s.wakeRun()
}

// fail records why a peer's session does not come up.
func (s *sessions) fail(name string, reason view.Reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named(name).fail = cause{reason, message}
	s.wakeRun()
}

// expect records that this driver is about to end a session, and why.
func (s *sessions) expect(key string, reason view.Reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.byAddr[address(key)]; x != nil && x.state == plan.SessionEstablished {
		x.expected = cause{reason, message}
	}
}

// count records how many prefixes each peer receives.
func (s *sessions) count(prefixes map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, x := range s.byName {
		x.shown.Prefixes = prefixes[name]
	}
	s.wakeRun()
}

func address(key string) netip.Addr {
	a, err := netip.ParseAddr(key)
	if err != nil {
		return netip.Addr{}
	}
	return a.WithZone("").Unmap()
}

var states = map[api.PeerState_SessionState]plan.SessionState{
	api.PeerState_IDLE: plan.SessionIdle, api.PeerState_CONNECT: plan.SessionConnect, api.PeerState_ACTIVE: plan.SessionActive,
	api.PeerState_OPENSENT: plan.SessionOpenSent, api.PeerState_OPENCONFIRM: plan.SessionOpenConfirm, api.PeerState_ESTABLISHED: plan.SessionEstablished,
}

// event processes a state change from GoBGP.
func (s *sessions) event(r *api.WatchEventResponse) {
	p := r.GetPeer().GetPeer().GetState()
	if p == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, state := s.byAddr[address(p.NeighborAddress)], states[p.SessionState]
	if x == nil || state == "" || x.overLimit {
		return
	}
	if state == plan.SessionOpenConfirm || state == plan.SessionEstablished {
		x.peerASN = p.PeerAsn
		x.peerID, _ = netip.ParseAddr(p.RouterId)
	}
	if state == plan.SessionIdle && x.state == plan.SessionActive && !x.until.IsZero() {
		return // a pause between two attempts, which is shown as Active
	}
	s.setState(x, state)
	s.wakeRun()
}

// setState records a session's new state.
func (s *sessions) setState(x *session, state plan.SessionState) {
	before, since, now := x.state, x.since, time.Now()
	if state == before {
		return
	}
	x.state, x.since = state, now
	switch {
	case state == plan.SessionEstablished:
		x.fail, x.pending, x.expected, x.refusalUnknown, x.broken, x.lost = cause{}, cause{}, cause{}, false, false, false
		x.shown.State, x.shown.Since = state, now
		x.shown.PeerASN, x.shown.PeerID = x.peerASN, x.peerID
		x.shown.Changes++
	case before == plan.SessionEstablished:
		x.down, x.lost = x.pending, x.broken && x.expected.reason == ""
		if x.failed = now; x.expected.reason != "" || now.Sub(since) >= steady {
			x.fresh(now.Add(s.initialPaceFor(x.peer)))
		}
		if x.expected.reason != "" {
			x.down = x.expected
		}
		x.fail, x.pending, x.expected = x.down, cause{}, cause{}
		x.shown.State, x.shown.Since = plan.SessionIdle, now
	case state == plan.SessionIdle:
		if before == plan.SessionOpenSent || before == plan.SessionOpenConfirm {
			x.failed = now
		}
		if x.pending.reason != "" {
			x.fail, x.pending = x.pending, cause{}
		}
	}
}

// show updates the shown state and returns when it may change by time only, the zero time if it does not.
func (x *session) show(now time.Time) (recheck time.Time) {
	if x.state != plan.SessionEstablished && x.shown.State != x.state {
		if recheck = x.since.Add(settled); !recheck.After(now) {
			x.shown.State, recheck = x.state, time.Time{}
		}
	}
	if x.shown.State == plan.SessionOpenSent && (x.fail.reason == "" || x.fail == x.down) { // why the last one ended is not why there is none
		x.fail = cause{plan.NoAnswer, "the router accepts the connection and sends nothing: check ttlSecurity on both sides"}
	}
	why := x.fail
	if x.state == plan.SessionEstablished {
		why = x.down
	}
	x.shown.Reason, x.shown.Message = why.reason, why.message
	return recheck
}

// transition is a changed session, for the log.
type transition struct {
	name     string
	was, now plan.Session
}

// changed returns the changes since the last call; everything if full is set.
func (s *sessions) changed(now time.Time, full bool) (report plan.BGPReport, transitions []transition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	report = plan.BGPReport{Full: full, Sessions: map[string]*plan.Session{}}
	for _, name := range s.gone {
		if !full {
			report.Sessions[name] = nil
		}
	}
	s.gone = nil
	for name, x := range s.byName {
		if recheck := x.show(now); !recheck.IsZero() {
			s.dueBy(recheck)
		}
		if x.shown != x.lastReported || x.first || full {
			report.Sessions[name] = new(plan.Session)
			*report.Sessions[name] = x.shown
			transitions = append(transitions, transition{name, x.lastReported, x.shown})
			x.lastReported, x.first = x.shown, false
		}
	}
	return report, transitions
}
