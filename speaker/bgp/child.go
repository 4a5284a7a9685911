package bgp

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Pauses between the end of a child and the start of the next one: routers with graceful restart wait for it. The pause
// grows while no child lives for a minute.
const (
	firstPause  = time.Second
	lastPause   = 10 * time.Second
	stableAfter = time.Minute
)

// removeTime is how long a process continues without its peer: GoBGP sends the NOTIFICATION asynchronously.
const removeTime = 500 * time.Millisecond

// child is the process with GoBGP of a peer, or the pause between two such processes.
type child struct {
	d     *Daemon
	peer  string
	began time.Time
	end   context.CancelFunc // ends its life
	over  chan struct{}      // closed when no more processes will run

	// The following fields are guarded by Daemon.mu.

	want          routes.Peer        // the peer, with the router ID of the process
	running       bool               // a process runs
	kill          context.CancelFunc // ends the process
	reported      bool               // it has reported, so GoBGP has its configuration
	restartReason string             // why the next one must start at once when this one has ended; empty if it need not
	since         time.Time          // since when it runs or does not run
	ended         string             // why it does not run; empty before the first one

	outbox

	// limited counts the consecutive processes that a limit has ended. held is why this one ends or the next one waits,
	// the zero value otherwise; retry ends that wait.
	limited int
	held    hold
	retry   context.CancelFunc

	session *routes.Session // as reported by the process
	changes uint64          // Changes of earlier processes
}

// begin starts the life of a peer's child. d.mu must be held.
func (d *Daemon) begin(name string, p routes.Peer) {
	ctx, end := context.WithCancel(d.life)
	c := &child{d: d, peer: name, began: now(), end: end, over: make(chan struct{}), want: p, since: now(), outbox: newOutbox()}
	c.sendAll(d.wanted.Serial)
	d.children[name] = c
	var before []*child // of the same router
	for other := range d.retiring {
		if other.peer == name || other.want.Address == p.Address {
			before = append(before, other)
		}
	}
	d.group.Go(func() {
		defer end()
		for _, other := range before {
			<-other.over
		}
		c.keep(ctx)
		d.mu.Lock()
		delete(d.retiring, c)
		d.mu.Unlock()
		close(c.over)
	})
}

// retire ends the life of a child whose peer was removed. d.mu must be held.
func (c *child) retire() {
	delete(c.d.children, c.peer)
	c.d.retiring[c] = struct{}{}
	if !c.running || c.session == nil {
		c.end()
		return
	}
	c.leave(Leave{Removed: true})
}

// leave lets the process end its session and itself. d.mu must be held.
func (c *child) leave(l Leave) {
	c.todo = false
	c.urge(order{Leave: &l})
	time.AfterFunc(leaveLimit, c.end)
}

// restart starts another process at once. d.mu must be held.
func (c *child) restart(why string, more ...any) {
	c.d.o.Log.Info("restarting GoBGP", append([]any{"peer", c.peer, "reason", why}, more...)...)
	c.restartReason = why
	c.kill()
}

// configure passes on the configuration of the peer, which follows the change with this serial. d.mu must be held.
func (c *child) configure(p routes.Peer, serial uint64) {
	was := c.want
	if c.want = p; was == p {
		return
	}
	if c.held.reason != "" {
		c.retryNow()
	}
	if c.running && c.restartReason == "" && was.RouterID != p.RouterID { // a GoBGP process never changes its router ID
		c.restart("the router id changed", "before", was.RouterID, "now", p.RouterID)
	}
	c.send(serial)
}

// next returns the next order, nil if there is none.
func (c *child) next() any {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(c.urgent) > 0 {
		o := c.urgent[0]
		c.urgent = c.urgent[1:]
		return o
	}
	if !c.todo || c.restartReason != "" { // the next process gets the full configuration
		return nil
	}
	change := &PeerChange{Full: c.all, Serial: d.wanted.Serial, Peer: c.want, Routes: make(map[netip.Prefix]*view.Attributes, len(c.prefixes))}
	if c.all {
		for prefix, r := range d.wanted.Routes {
			if a, has := r[c.peer]; has {
				change.Routes[prefix] = &a
			}
		}
	}
	for prefix := range c.prefixes {
		change.Routes[prefix] = nil
		if a, has := d.wanted.Routes[prefix][c.peer]; has {
			change.Routes[prefix] = &a
		}
	}
	clear(c.prefixes)
	c.todo, c.all, c.sent = false, false, change.Serial
	return order{Change: change}
}

// crashed reports whether a process has ended and no other one runs. d.mu must be held.
func (c *child) crashed() bool { return !c.running && c.ended != "" }

// status returns the session without BFD. d.mu must be held.
func (c *child) status() routes.Session {
	s := routes.Session{State: routes.SessionIdle, Since: c.since}
	if c.session != nil {
		s = *c.session
	}
	switch {
	case c.held.reason != "":
		s.Reason, s.Message = c.held.reason, c.held.message
	case c.crashed():
		s.Reason, s.Message = routes.NoBGPProcess, "GoBGP does not run: "+c.ended
	}
	s.Changes += c.changes
	s.Since = s.Since.Round(0).UTC()
	return s
}

// problem returns why the child cannot run BGP, empty if it can. d.mu must be held.
func (c *child) problem() string {
	switch {
	case c.held.reason != "":
		return ""
	case !c.running && c.ended == "":
		return "GoBGP starts"
	case !c.running:
		return "GoBGP does not run: " + c.ended
	case c.reported:
		return ""
	case c.ended != "":
		return "GoBGP runs; its configuration is not applied yet; the previous process ended: " + c.ended
	}
	return "GoBGP runs; its configuration is not applied yet"
}

// keep runs one process after the other until ctx ends.
func (c *child) keep(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := c.run(ctx)
		if time.Since(began) > stableAfter {
			pause = firstPause
		}
		switch restart, wait := c.hasEnded(ctx, err, pause); {
		case restart:
		case wait > 0:
			c.holdOff(ctx, wait)
		default:
			sleep(ctx, pause)
			pause = min(2*pause, lastPause)
		}
	}
}

// exchange sends the configuration and its changes to the child while the connection lasts.
func (c *child) exchange(ctx context.Context, pair net.Conn, pid int, kill context.CancelFunc) error {
	defer context.AfterFunc(ctx, func() { pair.Close() })()
	if !c.started(pid, kill) {
		return errTerminating
	}
	return exchange(newConn(pair), c.wake, c.next, c.reports)
}

// started schedules the full configuration for a new process, unless ironlb-bgpd is terminating.
func (c *child) started(pid int, kill context.CancelFunc) bool {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.terminating {
		return false
	}
	c.running, c.kill, c.since, c.reported = true, kill, now(), false
	c.sendAll(d.wanted.Serial)
	d.o.Metrics.child(1)
	d.o.Log.Info("GoBGP runs", "peer", c.peer, "pid", pid)
	d.report()
	return true
}

// reports processes a status of the process.
func (c *child) reports(s peerStatus) error {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	c.session, c.reported = &s.Session, true
	c.checkLimit()
	c.applied = cmp.Or(s.Applied, c.applied)
	d.report()
	return nil
}

var errTerminating = errors.New("ironlb-bgpd ends")

// hasEnded records how a process has ended, and reports whether the next one must start at once, or returns the
// hold-off if a limit ended this one. There is no next one if ironlb-bgpd is terminating or the peer was removed.
func (c *child) hasEnded(ctx context.Context, err error, pause time.Duration) (restart bool, wait time.Duration) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.running {
		d.o.Metrics.child(-1)
	}
	if c.session != nil {
		c.changes += c.session.Changes
	}
	why := c.restartReason
	if why == "" {
		wait = c.findLimit(err)
	} else {
		c.held = hold{}
	}
	c.running, c.session, c.restartReason, c.ended, c.since = false, nil, "", err.Error(), now()
	switch _, retired := d.retiring[c]; {
	case retired || d.terminating:
		c.end()
		c.ended, why, c.held = errTerminating.Error(), "", hold{}
	case why != "":
		c.ended = "restarted: " + why
	case wait > 0:
		d.o.Log.Warn("GoBGP ended, session down", "peer", c.peer,
			"reason", c.held.reason, "message", c.held.message, "retryIn", wait)
	case ctx.Err() == nil:
		d.o.Log.Error("GoBGP ended, session down", "peer", c.peer, "reason", err, "retryIn", pause)
	}
	d.report()
	return why != "", wait
}
