package bgp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Between the end of a child and the start of the next: routers wait for it with graceful restart. It grows as long as none lives for
// a minute.
const (
	firstPause = time.Second
	lastPause  = 10 * time.Second
	goodLife   = time.Minute
)

// ChildFile is the number of the file by which a child talks.
const ChildFile = 3

// keepChild runs one child after the other from the first wanted peer on, until ctx ends. Where there is none GoBGP would cost its memory
// for nothing.
func (d *Daemon) keepChild(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.first:
	}
	pause := firstPause
	for {
		began := time.Now()
		err := d.runChild(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > goodLife {
			pause = firstPause
		}
		if d.childEnded(err, pause) {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// runChild returns when a child has ended, and how.
func (d *Daemon) runChild(ctx context.Context) error {
	// The kernel kills the child when the thread ends that started it (prctl(2), PR_SET_PDEATHSIG); a locked one lives on.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	crash := &crashNote{out: os.Stderr}
	cmd := d.o.Child()
	cmd.ExtraFiles = []*os.File{theirs} // ChildFile
	cmd.Stderr = crash
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	talked := d.talk(ctx, ours, cmd.Process.Pid, kill)
	_ = cmd.Process.Kill() // where it does not end by itself; Wait tells how it did
	waited := cmd.Wait()
	switch note := crash.text(); {
	case note != "":
		return errors.New(note)
	case waited != nil && (talked == nil || errors.Is(talked, io.EOF) || errors.Is(talked, unix.ECONNRESET) || errors.Is(talked, unix.EPIPE)):
		return waited
	case talked == nil || errors.Is(talked, io.EOF):
		return errors.New("it ended by itself")
	}
	return talked
}

// talk tells the child what is wanted for as long as it listens.
func (d *Daemon) talk(ctx context.Context, conn net.Conn, pid int, kill context.CancelFunc) error {
	c := NewConn(conn)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := c.Answer(Process); err != nil {
		return err
	}
	l := newLink(c)
	d.childStarted(l, pid, kill)
	return l.run(ctx, func(m Message) error {
		if m.Report == nil {
			return errors.New("the child sent something that is no report")
		}
		d.childReport(*m.Report)
		return nil
	})
}

func (d *Daemon) childStarted(l *link, pid int, kill context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.child, d.kill, d.gone, d.since, d.heard = l, kill, make(chan struct{}), now(), false
	l.sendChange(wholeChange(d.wanted))
	d.o.Metrics.child(true)
	d.o.Log.Info("GoBGP runs", "pid", pid, "peers", len(d.wanted.Peers), "routes", len(d.wanted.Routes))
	d.report()
}

// childEnded tells whether the next one is to start at once.
func (d *Daemon) childEnded(err error, pause time.Duration) (again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.child != nil {
		close(d.gone)
	}
	for name, s := range d.goBGP {
		if _, still := d.wanted.Peers[name]; still {
			d.changes[name] += s.Changes
		}
	}
	again, d.again = d.again, false
	d.child, d.ended, d.since = nil, err.Error(), now()
	switch {
	case again:
		d.ended = "it is started anew"
	case d.bye:
		d.ended = "ironlb-bgpd ends"
	default:
		d.o.Log.Error("GoBGP ended; its peers' sessions are down until it runs again", "reason", err, "again in", pause)
	}
	clear(d.goBGP)
	d.o.Metrics.child(false)
	d.report()
	return again
}

// socketPair returns a connection, and the file of its other end for a child.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	f := os.NewFile(uintptr(fds[0]), "pair")
	defer f.Close()
	theirs = os.NewFile(uintptr(fds[1]), "pair")
	if ours, err = net.FileConn(f); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("use a pair of sockets: %w", err), theirs.Close())
	}
	return ours, theirs, nil
}

// crashNote passes on what a child writes to its standard error, and remembers the line with which the Go runtime ends a program, or main
// says why it does.
type crashNote struct {
	out io.Writer

	mu   sync.Mutex
	line []byte // that has not ended yet, as far as it counts
	note string
}

func (c *crashNote) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for rest := p; len(rest) > 0 && c.note == ""; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		c.line = append(c.line, part[:min(len(part), 300-min(300, len(c.line)))]...)
		if ended {
			if text := string(c.line); strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ") || strings.HasPrefix(text, "ironlb-bgpd: ") {
				c.note = text
			}
			c.line = c.line[:0]
		}
		rest = after
	}
	return c.out.Write(p)
}

func (c *crashNote) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.note
}
