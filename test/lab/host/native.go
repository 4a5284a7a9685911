package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Native runs commands in this machine's kernel. Each command leads its own process group and is killed when this
// process ends, in any way.
type Native struct{}

// Start implements Host.
func (Native) Start(ctx context.Context, c Cmd) (Process, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("start a command: its argument list is empty")
	}
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Dir = c.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	// A command with a terminal stays in the caller's group: its own group would be in the background there and stopped
	// on its first read.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !c.TTY, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error {
		if c.TTY {
			return cmd.Process.Kill()
		}
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	// A grandchild in another group may keep the output open forever.
	cmd.WaitDelay = 5 * time.Second
	if err := StartLasting(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", c, err)
	}
	return &nativeProcess{ctx, c, cmd}, nil
}

type nativeProcess struct {
	ctx context.Context
	c   Cmd
	cmd *exec.Cmd
}

func (p *nativeProcess) Pid() int { return p.cmd.Process.Pid }

func (p *nativeProcess) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

func (p *nativeProcess) Wait() error {
	err := p.cmd.Wait()
	if p.ctx.Err() != nil && err != nil {
		return fmt.Errorf("%s: %w", p.c, p.ctx.Err())
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	status := exit.Sys().(syscall.WaitStatus)
	return NewExitError(p.c.Argv, status)
}

// NewExitError returns the error for status, nil for exit status 0.
func NewExitError(argv []string, status syscall.WaitStatus) error {
	switch {
	case status.Signaled():
		return &ExitError{Argv: argv, Code: 128 + int(status.Signal()), Signal: status.Signal()}
	case status.ExitStatus() != 0:
		return &ExitError{Argv: argv, Code: status.ExitStatus()}
	}
	return nil
}

// StartLasting starts cmd from a thread that lives as long as this process. The kernel sends Pdeathsig when the forking
// thread ends, and the Go runtime ends threads: a command with Pdeathsig must be started this way.
func StartLasting(cmd *exec.Cmd) error {
	forker.Do(func() {
		go func() {
			runtime.LockOSThread() // never unlocked
			for start := range forks {
				start()
			}
		}()
	})
	err := make(chan error, 1)
	forks <- func() { err <- cmd.Start() }
	return <-err
}

var (
	forker sync.Once
	forks  = make(chan func())
)
