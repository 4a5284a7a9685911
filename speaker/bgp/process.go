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

// ChildFile is the file descriptor of a child's connection.
const ChildFile = 3

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
