package bgp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Pauses between the end of a child and the start of the next one: routers with graceful restart wait for it. The pause
// grows while no child lives for a minute.
const (
	firstPause  = time.Second
	lastPause   = 10 * time.Second
	stableAfter = time.Minute
)

// ChildFile is the file descriptor of a child's connection.
const ChildFile = 3

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

	address       netip.Addr         // of the peer
	link          *link              // nil while no process runs
	routerID      netip.Addr         // the router ID with which it was started
	kill          context.CancelFunc // ends the process
	reported      bool               // it has reported, so GoBGP has its configuration
	restartReason string             // why the next one must start at once when this one has ended; empty if it need not
	since         time.Time          // since when it runs or does not run
	ended         string             // why it does not run; empty before the first one

	// limited counts the consecutive processes that a limit has ended. held is why this one ends or the next one waits,
	// the zero value otherwise; retry ends that wait.
	limited int
	held    hold
	retry   context.CancelFunc

	session *plan.Session // as reported by the process
	changes uint64        // Changes of earlier processes

	// firstUnapplied is the serial of the first change that it has not applied, and lastSent that of the last one sent
	// to it; 0 is none.
	firstUnapplied, lastSent uint64
}

// begin starts the life of a peer's child. d.mu must be held.
func (d *Daemon) begin(peer string) {
	ctx, end := context.WithCancel(d.life)
	c := &child{d: d, peer: peer, began: now(), end: end, over: make(chan struct{}), address: d.wanted.Peers[peer].Address, since: now(), firstUnapplied: d.wanted.Serial}
	d.children[peer] = c
	var before []*child // of the same router
	for other := range d.retiring {
		if other.peer == peer || other.address == c.address {
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

// retire ends the life of a child whose peer was removed, after its Leave. d.mu must be held.
func (c *child) retire() {
	delete(c.d.children, c.peer)
	c.d.retiring[c] = struct{}{}
	if c.link == nil || c.session == nil {
		c.end()
		return
	}
	c.link.sendChange(plan.BGPChange{Full: true, RouterID: c.routerID})
	time.AfterFunc(leaveLimit, c.end)
}

// restart starts another process at once. d.mu must be held.
func (c *child) restart(why string, more ...any) {
	c.d.o.Log.Info("restarting GoBGP", append([]any{"peer", c.peer, "reason", why}, more...)...)
	c.restartReason = why
	c.kill()
}

// send sends a change to the process. d.mu must be held.
func (c *child) send(change plan.BGPChange) {
	if change.Serial != 0 {
		c.lastSent = change.Serial
		c.firstUnapplied = cmp.Or(c.firstUnapplied, c.lastSent)
	}
	c.link.sendChange(change)
}

// crashed reports whether a process has ended and no other one runs. d.mu must be held.
func (c *child) crashed() bool { return c.link == nil && c.ended != "" }

// status returns the session without BFD. d.mu must be held.
func (c *child) status() plan.Session {
	s := plan.Session{State: plan.SessionIdle, Since: c.since}
	if c.session != nil {
		s = *c.session
	}
	switch {
	case c.held.reason != "":
		s.Reason, s.Message = c.held.reason, c.held.message
	case c.crashed():
		s.Reason, s.Message = plan.NoBGPProcess, "GoBGP does not run: "+c.ended
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
	case c.link == nil && c.ended == "":
		return "GoBGP starts"
	case c.link == nil:
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

// run runs a process, and returns why it has ended.
func (c *child) run(ctx context.Context) error {
	// The kernel kills the child when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG); a locked thread
	// does not end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	crash := &crashLog{out: os.Stderr}
	cmd := c.d.o.Child(c.peer)
	cmd.ExtraFiles = []*os.File{theirs} // ChildFile
	cmd.Stderr = crash
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	ended := c.exchange(ctx, ours, cmd.Process.Pid, kill)
	_ = cmd.Process.Kill() // if it does not end by itself; Wait returns how it ended
	waited := cmd.Wait()
	switch reason := crash.text(); {
	case reason != "":
		return errors.New(reason)
	case waited != nil && (ended == nil || errors.Is(ended, io.EOF) || errors.Is(ended, unix.ECONNRESET) || errors.Is(ended, unix.EPIPE)):
		return waited
	case ended == nil || errors.Is(ended, io.EOF):
		return errors.New("it exited")
	}
	return ended
}

// exchange sends the configuration and its changes to the child while the connection lasts.
func (c *child) exchange(ctx context.Context, pair net.Conn, pid int, kill context.CancelFunc) error {
	conn := NewConn(pair)
	stop := context.AfterFunc(ctx, func() { pair.Close() })
	defer stop()
	if _, err := conn.Answer(Process); err != nil {
		return err
	}
	l := newLink(conn)
	if !c.started(l, pid, kill) {
		return errTerminating
	}
	return l.run(ctx, func(m Message) error {
		if m.Report == nil {
			return errors.New("the child sent a message other than a report")
		}
		c.reports(*m.Report)
		return nil
	})
}

// started sends the full configuration to a new process, unless ironlb-bgpd is terminating.
func (c *child) started(l *link, pid int, kill context.CancelFunc) bool {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.terminating {
		return false
	}
	wanted := partOf(d.wanted, c.peer)
	c.link, c.kill, c.since, c.reported, c.routerID = l, kill, now(), false, wanted.RouterID
	c.firstUnapplied, c.lastSent = wanted.Serial, wanted.Serial
	l.sendChange(fullChange(wanted))
	d.o.Metrics.child(1)
	d.o.Log.Info("GoBGP runs", "peer", c.peer, "pid", pid, "routes", len(wanted.Routes))
	d.report()
	return true
}

// reports processes a report of the process.
func (c *child) reports(r plan.BGPReport) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, reported := r.Sessions[c.peer]; reported || r.Full {
		c.session = s
	}
	c.reported = true
	c.checkLimit()
	switch r.Applied {
	case 0:
	case c.lastSent:
		c.firstUnapplied = 0
	default:
		c.firstUnapplied = r.Applied + 1
	}
	if _, retired := d.retiring[c]; retired && c.session == nil {
		time.AfterFunc(removeTime, c.end)
	}
	d.report()
}

var errTerminating = errors.New("ironlb-bgpd ends")

// hasEnded records how a process has ended, and reports whether the next one must start at once, or returns the
// hold-off if a limit ended this one. There is no next one if ironlb-bgpd is terminating or the peer was removed.
func (c *child) hasEnded(ctx context.Context, err error, pause time.Duration) (restart bool, wait time.Duration) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.link != nil {
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
	c.link, c.session, c.restartReason, c.ended, c.since = nil, nil, "", err.Error(), now()
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

// socketPair returns a connection, and the file of its other end for a child.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a pair of sockets: %w", err)
	}
	f := os.NewFile(uintptr(fds[0]), "pair")
	defer f.Close()
	theirs = os.NewFile(uintptr(fds[1]), "pair")
	if ours, err = net.FileConn(f); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("use a pair of sockets: %w", err), theirs.Close())
	}
	return ours, theirs, nil
}

// crashLog forwards a child's standard error, and keeps the line with which the Go runtime ends a program, or with
// which main gives the reason.
type crashLog struct {
	out io.Writer

	mu     sync.Mutex
	line   []byte // the current line, as far as it is needed
	reason string
}

func (c *crashLog) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for remaining := p; len(remaining) > 0 && c.reason == ""; {
		part, after, ended := bytes.Cut(remaining, []byte("\n"))
		c.line = append(c.line, part[:min(len(part), 300-min(300, len(c.line)))]...)
		if ended {
			if text := string(c.line); strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ") || strings.HasPrefix(text, "ironlb-bgpd: ") {
				c.reason = text
			}
			c.line = c.line[:0]
		}
		remaining = after
	}
	return c.out.Write(p)
}

func (c *crashLog) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}
