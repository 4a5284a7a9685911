package bfd

import (
	"math/rand/v2"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// slow is the minimum of the desired transmit interval while a session is not up (RFC 5880, 6.8.3).
const slow = time.Second

// session has the state variables of RFC 5880, 6.8.1, with their names there.
type session struct {
	key   Key
	names []string // of the configurations that share it, ascending; none while it ends
	conf  Config

	state       State
	remoteState State
	localDiscr  uint32
	remote      remote
	diag        Diagnostic
	reason      Reason
	since       time.Time
	downs       uint64
	detected    time.Duration
	problem     string
	// index is the index of a single-hop session's interface, 0 if unknown.
	index int
	// discardReason is set if packets were discarded for their TTL or interface, ttl is that TTL.
	discardReason string
	ttl           int
	reported      Status

	// desiredTx and requiredRx are the values in packets; usedTx and usedRx are in force until the remote system has
	// confirmed them (6.8.3).
	desiredTx, requiredRx time.Duration
	usedTx, usedRx        time.Duration
	poll                  poll

	lastTx, lastRx time.Time
	// nextTx is when the next periodic packet is due, expiry when the detection time ends; zero for never.
	nextTx, expiry time.Time
	// armed is the interval from which nextTx was computed, 0 if none is sent.
	armed time.Duration
	// ends is when the AdminDown period ends.
	ends time.Time
	// due is set if a packet must be sent at once, final if the answer to a poll must.
	due, final bool
}

// remote is the content of the remote system's last packet.
type remote struct {
	discr       uint32
	diag        Diagnostic
	minRx       time.Duration // RemoteMinRxInterval
	desiredTx   time.Duration
	multiplier  uint8
	demand      bool
	independent bool
}

// poll is a Poll Sequence (6.5). A packet without F separates two sequences (6.8.3).
type poll struct {
	active bool
	// changed is set if a value changed during the sequence, wait if the next sequence waits for a packet without F.
	changed, wait bool
}

func newSession(now time.Time, key Key, conf Config, discr uint32) *session {
	s := &session{key: key, conf: conf, state: Down, localDiscr: discr, reason: NeverUp, since: now}
	s.resetRemote()
	s.updateIntervals()
	return s
}

// resetRemote resets the state to that after a silence of a detection time (6.8.1).
func (s *session) resetRemote() {
	s.remote = remote{minRx: time.Microsecond}
	s.remoteState = Down
	s.poll = poll{}
	s.usedTx, s.usedRx = s.desiredTx, s.requiredRx
	s.expiry = time.Time{}
}

// updateIntervals updates the advertised intervals to the configuration and the state, and starts a Poll Sequence. An
// interval that needs confirmation by the remote system is used only after that (6.8.3).
func (s *session) updateIntervals() {
	desired, required := s.conf.Timers.Transmit, s.conf.Timers.Receive
	if s.state != Up {
		desired = max(desired, slow)
	}
	if desired == s.desiredTx && required == s.requiredRx {
		return
	}
	s.desiredTx, s.requiredRx = desired, required
	if s.state != Up || desired < s.usedTx {
		s.usedTx = desired
	}
	if s.state != Up || required > s.usedRx {
		s.usedRx = required
	}
	switch {
	case s.remote.discr == 0: // no remote system to confirm
		s.usedTx, s.usedRx = desired, required
	case s.poll.active:
		s.poll.changed = true
	case s.poll.wait: // the next sequence includes it anyway
	default:
		s.poll.active = true
	}
}

// polled ends a Poll Sequence, or starts the next one.
func (s *session) polled(final bool) {
	switch {
	case s.poll.active && final:
		if s.poll.changed {
			s.poll = poll{wait: true}
			return
		}
		s.poll = poll{}
		s.usedTx, s.usedRx = s.desiredTx, s.requiredRx
	case s.poll.wait && !final:
		s.poll = poll{active: true}
	}
}

// onlyDiscriminator returns the discriminator of the only accepted sender while a multihop session is up, else 0: any
// host can send with the peer's address and without a session's discriminator. A peer that restarts is accepted after
// the detection time.
func (s *session) onlyDiscriminator() uint32 {
	if !s.key.MultiHop || s.state != Up {
		return 0
	}
	return s.remote.discr
}

// receive is the second half of 6.8.6, for a packet of the session.
func (s *session) receive(now time.Time, p *Packet) {
	s.remote = remote{discr: p.My, diag: p.Diagnostic, minRx: p.RequiredRx, desiredTx: p.DesiredTx, multiplier: p.Multiplier,
		demand: p.Demand, independent: p.Independent}
	s.remoteState = p.State
	s.lastRx = now
	s.discardReason = ""
	s.polled(p.Final)
	if s.state != AdminDown {
		s.step(now, p.State)
		s.final = s.final || p.Poll
	}
}

// step is the state machine (6.2, 6.8.6).
func (s *session) step(now time.Time, remote State) {
	switch {
	case remote == AdminDown && s.state != Down:
		s.become(now, Down, NeighborDown, PeerAdminDown)
	case s.state == Down && remote == Down:
		s.become(now, Init, s.diag, s.reason)
	case s.state == Down && remote == Init, s.state == Init && (remote == Init || remote == Up):
		s.become(now, Up, NoDiagnostic, "")
	case s.state == Up && remote == Down:
		s.become(now, Down, NeighborDown, PeerDown)
	}
}

// become changes the state and makes a packet due at once (6.8.7).
func (s *session) become(now time.Time, to State, diag Diagnostic, why Reason) {
	if s.state == Up {
		s.downs++
	}
	s.state, s.diag, s.reason, s.since = to, diag, why, now
	s.due = true
	s.updateIntervals()
}

// detection is the silence after which the session goes down (6.8.4).
func (s *session) detection() time.Duration {
	return time.Duration(s.remote.multiplier) * max(s.usedRx, s.remote.desiredTx)
}

// interval is the interval between periodic packets, without jitter; 0 if none are sent (6.8.7).
func (s *session) interval() time.Duration {
	switch {
	case s.conf.Timers.Passive && s.remote.discr == 0, s.remote.minRx == 0:
		return 0
	case s.remote.demand && s.state == Up && s.remoteState == Up && !s.poll.active:
		return 0
	}
	return max(s.usedTx, s.remote.minRx)
}

// tick processes what is due.
func (s *session) tick(now time.Time) {
	if !s.expiry.IsZero() && !now.Before(s.expiry) {
		silence := now.Sub(s.lastRx)
		s.resetRemote()
		if s.state == Up || s.state == Init {
			s.detected = silence
			s.become(now, Down, TimeExpired, Expired)
		}
	}
	if !s.nextTx.IsZero() && !now.Before(s.nextTx) {
		s.due = true
	}
}

// arm sets the expiry and the time of the next packet. The latter counts from the last packet and is reset whenever the
// interval changes, so that neither the slow packets of a session that comes up nor the remote system's old interval
// delay it (6.8.3).
func (s *session) arm(now time.Time, random *rand.Rand) {
	if s.remote.discr != 0 {
		s.expiry = s.lastRx.Add(s.detection())
	}
	if is := s.interval(); is != s.armed {
		s.armed = is
		s.rearm(now, random)
	}
}

// rearm sets the time of the next periodic packet: 75 to 100 % of the interval after the last one, or 75 to 90 % if the
// multiplier is 1 (6.8.7).
func (s *session) rearm(now time.Time, random *rand.Rand) {
	if s.armed == 0 {
		s.nextTx = time.Time{}
		return
	}
	most := s.armed / 4
	if s.conf.Timers.Multiplier == 1 {
		most = s.armed * 15 / 100
	}
	if s.nextTx = s.lastTx.Add(s.armed*3/4 + time.Duration(random.Int64N(int64(most)+1))); s.nextTx.Before(now) {
		s.nextTx = now
	}
}

// packet returns the packet to send (6.8.7). An answer to a poll has no P.
func (s *session) packet(final, independent bool) Packet {
	return Packet{Diagnostic: s.diag, State: s.state, Poll: s.poll.active && !final, Final: final, Independent: independent,
		Multiplier: s.conf.Timers.Multiplier, My: s.localDiscr, Your: s.remote.discr, DesiredTx: s.desiredTx, RequiredRx: s.requiredRx}
}

// over reports whether AdminDown has been sent for long enough.
func (s *session) over(now time.Time) bool { return !s.ends.IsZero() && !now.Before(s.ends) }

// wake returns when the session's next tick is due.
func (s *session) wake() time.Time { return earliest(s.nextTx, s.expiry, s.ends) }

// earliest returns the first of the times that are set.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// Reason is the reason why a session is not up.
type Reason string

// The reasons; empty for a session that is up.
const (
	// NeverUp: no packets were received from the remote system yet, or not enough.
	NeverUp Reason = "NeverUp"
	// Expired: no packet was received for the detection time. The path is dead.
	Expired Reason = "DetectionTimeExpired"
	// PeerDown: the remote system reports the session as down: it does not receive this one, or has restarted.
	PeerDown Reason = "PeerDown"
	// PeerAdminDown: the remote session is administratively down, which does not mean that the path is dead (RFC 5882,
	// 3.2 and 4.2).
	PeerAdminDown Reason = "PeerAdminDown"
)

// Status is the status of a session. It is comparable with ==.
type Status struct {
	State view.BFDState
	Since time.Time
	// Reason is the reason why it is not up. It stays while the session tries to come up again.
	Reason Reason
	// Detected is the silence after which it last expired.
	Detected time.Duration
	// Downs is how often it went down after it was up.
	Downs uint64
	// RemoteState and RemoteDiagnostic are from the remote system's last packet; Received is set if packets are
	// received from it.
	RemoteState      view.BFDState
	RemoteDiagnostic Diagnostic
	Received         bool
	// RemoteIndependent is the remote system's C bit.
	RemoteIndependent bool
	// Transmit is the interval of packets to the remote system, without jitter, 0 if none are sent. Detection is the
	// silence after which the session goes down, 0 if no packets are received.
	Transmit, Detection time.Duration
	// Problem is the error that prevents this side from sending or receiving, empty if there is none.
	Problem string
}

func (s *session) status() Status {
	st := Status{State: s.state.View(), Since: s.since, Reason: s.reason, Detected: s.detected, Downs: s.downs,
		RemoteState: s.remoteState.View(), RemoteDiagnostic: s.remote.diag, Received: s.remote.discr != 0,
		RemoteIndependent: s.remote.independent, Transmit: s.interval(), Problem: s.problem}
	if st.Received {
		st.Detection = s.detection()
	}
	if st.Problem == "" {
		st.Problem = s.discardReason
	}
	return st
}
