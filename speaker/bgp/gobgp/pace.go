package gobgp

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/speaker/plan"
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

// duePauses returns the peers with an attempt that has just failed and a pause to begin, and sets the end of the pause.
func (s *sessions) duePauses(now time.Time) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, x := range s.byName {
		failed := x.failed
		x.failed = time.Time{}
		switch {
		case failed.IsZero(), now.Sub(failed) > prompt, now.Before(x.pace.initialUntil), !x.until.IsZero():
		case s.byAddr[x.peer.Address.WithZone("")] != x, x.state != plan.SessionIdle && x.state != plan.SessionActive:
		default:
			x.pauses++
			x.until = now.Add(jitter(pauseLength(time.Duration(seconds(x.peer.ConnectTime, connectTime))*time.Second, x.pauses)))
			s.dueBy(x.until)
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// endedPauses returns the peers whose pause has ended and that are to be tried.
func (s *sessions) endedPauses(now time.Time) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, x := range s.byName {
		switch {
		case x.until.IsZero():
		case x.until.After(now):
			s.dueBy(x.until)
		default:
			x.until = time.Time{}
			if x.state != plan.SessionEstablished {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// trying records that a peer has been added to GoBGP again.
func (s *sessions) trying(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.byAddr[address(key)]; x != nil {
		x.until = time.Time{}
	}
}

// initialPaceFor returns how long a peer is tried at GoBGP's own pace: with graceful restart at least as long as the
// router keeps the routes. s.mu must be held.
func (s *sessions) initialPaceFor(p plan.Peer) time.Duration {
	if p.GracefulRestart {
		return max(s.initialPace, p.RestartTime)
	}
	return s.initialPace
}

// atInitialPace reports whether a peer is still tried at its initial pace.
func (s *sessions) atInitialPace(p plan.Peer, began, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Before(began.Add(s.initialPaceFor(p)))
}

// retryNow makes a router due at once, at GoBGP's own pace.
func (s *sessions) retryNow(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.byName[name]
	if x == nil || x.state == plan.SessionEstablished {
		return
	}
	now, paused := time.Now(), !x.until.IsZero()
	x.fresh(now.Add(s.initialPaceFor(x.peer)))
	if paused {
		x.until = now
	}
	s.wakeRun()
}

// Up ends the pause of a peer's router at once, because BFD found that the path to it works again.
func (d *Driver) Up(name string) { d.sessions.retryNow(name) }

// applyPauses starts pauses after failed attempts, and tries again the peers whose pause has ended.
func (d *Driver) applyPauses(now time.Time) {
	for _, name := range d.sessions.endedPauses(now) {
		if p := d.peers[name]; p != nil {
			d.readd(p)
		}
	}
	for _, name := range d.sessions.duePauses(now) {
		p := d.peers[name]
		if p == nil {
			continue
		}
		if err := d.server.DisablePeer(context.Background(), &api.DisablePeerRequest{Address: p.key}); err != nil {
			d.log.Error("cannot pause a BGP peer", "peer", name, "error", err)
		}
	}
}
