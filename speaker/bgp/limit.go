package bgp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// A process that reached a limit, of prefixes or of memory, would do so again at once, and routers would see the routes
// of this node flap (RFC 4271, 8.1.1: DampPeerOscillations). So the next one waits: firstHoldOff, then twice as long
// each time up to lastHoldOff. A change of the peer ends the wait.
const (
	firstHoldOff = 5 * time.Minute
	lastHoldOff  = time.Hour
)

// hold is why no process runs for a while.
type hold struct {
	reason  view.Reason
	message string
}

// nextHoldOff returns the hold-off after the nth consecutive process that a limit ended, from 1.
func nextHoldOff(n int) time.Duration { return min(firstHoldOff<<min(n-1, 10), lastHoldOff) }

// checkLimit ends a process with a session that reached the limit of prefixes, once GoBGP has sent its NOTIFICATION:
// the process still stores what it had read by then. d.mu must be held.
func (c *child) checkLimit() {
	s := c.session
	if s == nil || s.Reason != routes.TooManyPrefixes || s.State == routes.SessionEstablished || c.held.reason != "" {
		return
	}
	c.held = hold{s.Reason, s.Message}
	time.AfterFunc(removeTime, c.kill)
}

// findLimit returns the hold-off after a process that a limit has ended, and 0 after any other. d.mu must be held.
func (c *child) findLimit(err error) (wait time.Duration) {
	if c.held.reason == "" && outOfMemory(err) {
		c.held = hold{routes.OutOfMemory, fmt.Sprintf("GoBGP needed more memory than --peer-memory allows (%v): have the "+
			"router announce fewer prefixes to this node, which uses none, or raise that limit", err)}
	}
	if c.held.reason == "" || now().Sub(c.since) >= lastHoldOff {
		c.limited = 0
	}
	if c.held.reason == "" {
		return 0
	}
	c.limited++
	wait = nextHoldOff(c.limited)
	c.held.message += fmt.Sprintf("; retry in %v, or at once when the BGPPeer is changed", wait)
	return wait
}

// outOfMemory reports whether a process ended because the kernel granted it no more memory, by the messages of the Go
// runtime (throw in runtime/mem_linux.go, malloc.go, mheap.go).
func outOfMemory(err error) bool {
	text, fatal := strings.CutPrefix(err.Error(), "fatal error: ")
	return fatal && (strings.Contains(text, "out of memory") || strings.Contains(text, "cannot allocate memory"))
}

// holdOff waits for the time, a change of the peer, or the end of ctx.
func (c *child) holdOff(ctx context.Context, wait time.Duration) {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	c.d.mu.Lock()
	if c.held.reason == "" {
		stop() // the peer has already changed
	}
	c.retry = stop
	c.d.mu.Unlock()
	sleep(waiting, wait)
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.release()
	c.retry = nil
}

// retryNow ends the wait after a limit, because the peer was changed. d.mu must be held.
func (c *child) retryNow() {
	c.release()
	c.limited = 0
	if c.retry != nil {
		c.retry()
	}
}

// release clears the hold: the child's process is about to start. d.mu must be held.
func (c *child) release() {
	if c.held.reason != "" {
		c.held, c.ended = hold{}, ""
	}
}

// sleep returns after a time, or when ctx ends.
func sleep(ctx context.Context, t time.Duration) {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
