package gobgp

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/speaker/plan"
)

// GoBGP tries a router for ever at one pace: every connectTime to twice that where no connection comes about (connectLoop in its fsm.go), every
// six seconds or so where a router refuses the session (holdtimeIdle there). So after a while the driver has it rest after each try that failed: the
// peer is disabled, and handed to GoBGP again once it is to be tried.

// eager is for how long a router is tried at GoBGP's own pace, from when the peer was added or changed or had a session: one that was configured a
// moment later, or is started again, is not kept waiting. steady is how long a session lasts at least that counts for that: one that
// breaks as soon as it is up is no better than one that does not come up. prompt is how long after a failure GoBGP surely has not begun the next try.
const (
	eager  = time.Minute
	steady = 5 * time.Second
	prompt = 500 * time.Millisecond
)

// rest is how long a router is left alone the nth time: twice connectTime, then twice as long each time, up to a minute; never less than
// connectTime.
func rest(connect time.Duration, n int) time.Duration {
	wait := connect
	for ; n > 0 && wait < lastRetry; n-- {
		wait *= 2
	}
	return max(min(wait, lastRetry), connect)
}

// jitter takes up to a quarter off (RFC 4271, 10), so that the nodes that a router refuses do not go on coming all at once.
func jitter(wait time.Duration) time.Duration { return wait - rand.N(wait/4+1) }

// pace is how a peer is tried.
type pace struct {
	// failed is when a try failed that nothing has come of yet.
	failed time.Time
	// eager is until when it is tried at GoBGP's own pace, rests how often it has rested since, until when it rests now.
	eager, until time.Time
	rests        int
}

// fresh has a router tried as one of which nothing is known yet.
func (p *pace) fresh(until time.Time) { *p = pace{eager: until} }

// tired returns the peers of which a try has just failed and that are to rest, and until when they do is set.
func (s *sessions) tired(now time.Time) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, x := range s.byName {
		failed := x.failed
		x.failed = time.Time{}
		switch {
		case failed.IsZero(), now.Sub(failed) > prompt, now.Before(x.pace.eager), !x.until.IsZero():
		case s.byAddr[x.peer.Address.WithZone("")] != x, x.state != plan.SessionIdle && x.state != plan.SessionActive:
		default:
			x.rests++
			x.until = now.Add(jitter(rest(time.Duration(seconds(x.peer.ConnectTime, connectTime))*time.Second, x.rests)))
			s.soon(x.until)
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// rested returns the peers that have rested and are to be tried.
func (s *sessions) rested(now time.Time) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, x := range s.byName {
		switch {
		case x.until.IsZero():
		case x.until.After(now):
			s.soon(x.until)
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

// trying says that GoBGP has a peer anew.
func (s *sessions) trying(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.byAddr[address(key)]; x != nil {
		x.until = time.Time{}
	}
}

// eagerFor is how long a peer is tried at GoBGP's own pace: with graceful restart also for as long as the router keeps the routes. s.mu is held.
func (s *sessions) eagerFor(p plan.Peer) time.Duration {
	if p.GracefulRestart {
		return max(s.eager, p.RestartTime)
	}
	return s.eager
}

// isEager tells whether a peer is still to be tried at the pace that it began with.
func (s *sessions) isEager(p plan.Peer, began, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Before(began.Add(s.eagerFor(p)))
}

// near has a router tried at once, and eagerly.
func (s *sessions) near(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.byName[name]
	if x == nil || x.state == plan.SessionEstablished {
		return
	}
	now, resting := time.Now(), !x.until.IsZero()
	x.fresh(now.Add(s.eagerFor(x.peer)))
	if resting {
		x.until = now
	}
	s.poke()
}

// Up has the router of a peer tried at once if it is being left alone, because BFD found the path to it whole.
func (d *Driver) Up(name string) { d.sessions.near(name) }

// restSome has the peers rest whose tries fail, and tries again those that have rested.
func (d *Driver) restSome(now time.Time) {
	for _, name := range d.sessions.rested(now) {
		if p := d.peers[name]; p != nil {
			d.again(p)
		}
	}
	for _, name := range d.sessions.tired(now) {
		p := d.peers[name]
		if p == nil {
			continue
		}
		if err := d.server.DisablePeer(context.Background(), &api.DisablePeerRequest{Address: p.key}); err != nil {
			d.log.Error("cannot leave a BGP router alone for a while", "peer", name, "err", err)
		}
	}
}
