package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
)

// run serves one stream: one command from request to exit.
func run(stream io.ReadWriter) {
	out := wire.NewWriter(stream)
	if err := runCommand(stream, out); err != nil {
		out.Send(wire.KindFailed, []byte(err.Error())) // no error handling: the caller may have closed the stream
	}
}

func runCommand(in io.Reader, out *wire.Writer) error {
	kind, b, err := wire.Read(in)
	if err != nil || kind != wire.KindRequest {
		return fmt.Errorf("read the request: kind %d, %v", kind, err)
	}
	var req wire.Request
	if err := json.Unmarshal(b, &req); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	c, err := start(req, out)
	if err != nil {
		return err
	}
	out.SendJSON(wire.KindStarted, c.cmd.Process.Pid)
	go c.control(in, out)

	err = c.wait()
	c.ended.Store(true)
	var exit *exec.ExitError
	e := wire.Exit{Status: uint32(c.cmd.ProcessState.Sys().(syscall.WaitStatus))}
	if err != nil && !errors.As(err, &exit) {
		e.Err = err.Error()
	}
	return out.SendJSON(wire.KindExit, e)
}

// command is a running command.
type command struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	tty   *os.File      // the terminal's master side, nil without a terminal
	drain chan struct{} // closed when the terminal's output was sent
	ended atomic.Bool
}

func start(req wire.Request, out *wire.Writer) (*command, error) {
	if len(req.Argv) == 0 {
		return nil, errors.New("start a command: its argument list is empty")
	}
	cmd := exec.Command(req.Argv[0], req.Argv[1:]...)
	cmd.Env = append(append([]string{}, baseEnv...), req.Env...)
	cmd.Dir = req.Dir
	// A grandchild may keep the output open forever.
	cmd.WaitDelay = 5 * time.Second
	c := &command{cmd: cmd}
	if req.TTY {
		return c, c.startTTY(req.Size, out)
	}
	var err error
	if c.input, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out.Data(wire.KindStdout), out.Data(wire.KindStderr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c, cmd.Start()
}

func (c *command) wait() error {
	err := c.cmd.Wait()
	if c.tty != nil {
		select {
		case <-c.drain:
		case <-time.After(c.cmd.WaitDelay):
			err = errors.Join(err, exec.ErrWaitDelay)
		}
		c.tty.Close()
	}
	return err
}

// control handles the caller's frames. If the caller closes the stream, the process group is killed.
func (c *command) control(in io.Reader, out *wire.Writer) {
	input := make(chan []byte, wire.InputWindow)
	defer close(input)
	go func() {
		for b := range input {
			// An error means that the command has ended or closed its input: the remaining input is discarded.
			if len(b) == 0 {
				c.input.Close()
			} else {
				c.input.Write(b)
			}
			out.Send(wire.KindTaken, nil)
		}
	}()
	for {
		kind, b, err := wire.Read(in)
		if err != nil {
			c.kill()
			return
		}
		switch kind {
		case wire.KindStdin:
			input <- b
		case wire.KindSignal:
			var s syscall.Signal
			if json.Unmarshal(b, &s) == nil {
				c.cmd.Process.Signal(s)
			}
		case wire.KindKill:
			c.kill()
		case wire.KindResize:
			var s wire.Size
			if json.Unmarshal(b, &s) == nil && c.tty != nil {
				resize(c.tty, s)
			}
		}
	}
}

// kill kills the process group. After the command has been waited for, its number may belong to another group.
func (c *command) kill() {
	if !c.ended.Load() {
		syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	}
}
