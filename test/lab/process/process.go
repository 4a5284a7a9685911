// Package process runs one long-lived command. It logs to a file, and its unexpected end is reported with the last
// lines of that log.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab/host"
)

// Process is a command that runs until it is stopped.
type Process struct {
	Name string
	Log  string // file with both of its output streams

	p    host.Process
	kill context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	stopped bool // requested by Stop or Kill
	err     error
}

// Start starts c under the given name and appends its output to the file log. The process outlives ctx's cancellation:
// only Stop, Kill and the end of this program end it.
func Start(ctx context.Context, h host.Host, name, log string, c host.Cmd) (*Process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: open its log: %w", name, err)
	}
	ctx, kill := context.WithCancel(context.WithoutCancel(ctx))
	out := io.Writer(f)
	if c.Stdout != nil {
		out = io.MultiWriter(f, c.Stdout)
	}
	c.Stdout, c.Stderr = out, f
	if c.Stdout == io.Writer(f) {
		c.Stderr = c.Stdout
	}
	hp, err := h.Start(ctx, c)
	if err != nil {
		kill()
		f.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, Log: log, p: hp, kill: kill, done: make(chan struct{})}
	go func() {
		err := hp.Wait()
		f.Close()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.done)
	}()
	return p, nil
}

// Pid in the kernel that runs it.
func (p *Process) Pid() int { return p.p.Pid() }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Wait waits for the end of the process and returns its result: nil for exit status 0.
func (p *Process) Wait() error {
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Err returns nil while the process runs and after it was stopped; otherwise how it ended, with the last lines of its
// log.
func (p *Process) Err() error {
	if p.Running() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return nil
	}
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended by itself: %s; its last lines:\n%s", p.Name, how, Tail(p.Log, 15))
}

// Expect marks the end of the process as expected: the caller is about to end it.
func (p *Process) Expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
}

// Stop sends SIGTERM, and SIGKILL if the process has not ended after grace.
func (p *Process) Stop(grace time.Duration) error {
	p.Expect()
	if !p.Running() {
		return nil
	}
	if err := p.p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.kill()
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		return errors.Join(fmt.Errorf("stop %s: still running %s after SIGTERM, killed", p.Name, grace), p.Kill())
	}
	return nil
}

// Kill ends the process group with SIGKILL and waits for its end.
func (p *Process) Kill() error {
	p.Expect()
	p.kill()
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("kill %s: still running 10s after SIGKILL", p.Name)
	}
}

// Pause stops the process without ending it.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Signal sends s to the process, not to its children.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.p.Signal(s); err != nil {
		return fmt.Errorf("send %s to %s: %w", s, p.Name, err)
	}
	return nil
}

// Tail returns the last n lines of a file, or an error text.
func Tail(file string, n int) string {
	f, err := os.Open(file)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, size-64<<10), io.SeekStart) // a failed seek only reads more
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return "(" + file + " is empty)"
	}
	lines := strings.Split(string(data), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
