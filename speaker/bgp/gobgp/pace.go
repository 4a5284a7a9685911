package gobgp

import (
	"math/rand/v2"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
)

// GoBGP connects to a router for ever at one pace: every connectTime to twice that if there is no connection
// (connectLoop in its fsm.go), about every six seconds if a router refuses the session (holdtimeIdle there). So after a
// while the driver adds a pause after each failed attempt: the peer is disabled, and added to GoBGP again for the next
// attempt.

// initialPace is how long a router is tried at GoBGP's own pace, from when the peer was added or changed or had a
// session: a router that was configured a moment later, or restarts, must not wait. steady is the minimum duration of a
// session that counts for that: one that breaks as soon as it is up is no better than one that does not come up. prompt
// is the time after a failure in which GoBGP certainly has not started the next attempt.
const (
	initialPace = time.Minute
	steady      = 5 * time.Second
	prompt      = 500 * time.Millisecond
)

// pauseLength returns the nth pause: twice connectTime, then twice as long each time, up to a minute; never less than
// connectTime.
func pauseLength(connect time.Duration, n int) time.Duration {
	wait := connect
	for ; n > 0 && wait < lastRetry; n-- {
		wait *= 2
	}
	return max(min(wait, lastRetry), connect)
}

// jitter subtracts up to a quarter (RFC 4271, 10), so that the nodes that a router refuses do not all connect at once.
func jitter(wait time.Duration) time.Duration { return wait - rand.N(wait/4+1) }

// pace is the schedule of a peer's attempts.
type pace struct {
	// failed is when the last attempt failed, until duePauses processes it.
	failed time.Time
	// initialUntil is until when it is tried at GoBGP's own pace, pauses the number of pauses since, until the end of
	// the current pause.
	initialUntil, until time.Time
	pauses              int
}

// fresh resets the pace to that of a new router.
func (p *pace) fresh(until time.Time) { *p = pace{initialUntil: until} }

// duePause reports whether an attempt has just failed and a pause begins, and sets its end.
func (s *session) duePause(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := s.failed
	s.failed = time.Time{}
	switch {
	case failed.IsZero(), now.Sub(failed) > prompt, now.Before(s.initialUntil), !s.until.IsZero():
	case !s.held, s.state != routes.SessionIdle && s.state != routes.SessionActive:
	default:
		s.pauses++
		s.until = now.Add(jitter(pauseLength(time.Duration(seconds(s.peer.ConnectTime, connectTime))*time.Second, s.pauses)))
		s.dueBy(s.until)
		return true
	}
	return false
}

// endedPause reports whether a pause has ended and the peer is to be tried.
func (s *session) endedPause(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.until.IsZero():
	case s.until.After(now):
		s.dueBy(s.until)
	default:
		s.until = time.Time{}
		return s.state != routes.SessionEstablished
	}
	return false
}

// trying records that the peer has been added to GoBGP again.
func (s *session) trying() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Time{}
}

// initialPaceFor returns how long a peer is tried at GoBGP's own pace: with graceful restart at least as long as the
// router keeps the routes. s.mu must be held.
func (s *session) initialPaceFor(p routes.Peer) time.Duration {
	if p.GracefulRestart {
		return max(s.initialPace, p.RestartTime)
	}
	return s.initialPace
}

// atInitialPace reports whether a peer is still tried at its initial pace.
func (s *session) atInitialPace(p routes.Peer, began, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Before(began.Add(s.initialPaceFor(p)))
}

// retryNow makes the router due at once, at GoBGP's own pace.
func (s *session) retryNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == routes.SessionEstablished {
		return
	}
	now, paused := time.Now(), !s.until.IsZero()
	s.fresh(now.Add(s.initialPaceFor(s.peer)))
	if paused {
		s.until = now
	}
	s.wakeRun()
}
