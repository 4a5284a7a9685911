package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
	"github.com/ironlb/ironlb/test/lab/host"
)

// killLimit is the timeout for the end of a killed command.
const killLimit = 10 * time.Second

// process is a command in a guest.
type process struct {
	ctx     context.Context
	c       host.Cmd
	conn    net.Conn
	out     *wire.Writer
	explain func(error) error // returns the actual cause of an error of conn
	pid     int

	credit  chan struct{} // one for each unanswered input frame
	release []func()
	done    chan struct{} // closed when err is set
	err     error
}

// start requests c on conn, which it closes when c has ended.
func start(ctx context.Context, conn net.Conn, c host.Cmd, explain func(error) error) (host.Process, error) {
	p := &process{
		ctx: ctx, c: c, conn: conn, out: wire.NewWriter(conn), explain: explain,
		credit: make(chan struct{}, wire.InputWindow), done: make(chan struct{}),
	}
	if err := p.start(); err != nil {
		p.close()
		return nil, fmt.Errorf("start %s in the guest: %w", c, err)
	}
	go p.receive()
	go p.sendInput()
	return p, nil
}

func (p *process) start() error {
	req := wire.Request{Argv: p.c.Argv, Env: p.c.Env, Dir: p.c.Dir, TTY: p.c.TTY}
	if p.c.TTY {
		if err := p.rawTerminal(&req.Size); err != nil {
			return err
		}
	}
	if err := p.out.SendJSON(wire.KindRequest, req); err != nil {
		return p.explain(err)
	}
	// The agent answers at once or the guest is lost, so this needs no context.
	kind, b, err := wire.Read(p.conn)
	switch {
	case err != nil:
		return p.explain(err)
	case kind == wire.KindFailed:
		return errors.New(string(b))
	case kind == wire.KindLost:
		return lostError(b)
	case kind != wire.KindStarted:
		return fmt.Errorf("the agent answers with kind %d", kind)
	}
	if err := json.Unmarshal(b, &p.pid); err != nil {
		return err
	}
	stop := context.AfterFunc(p.ctx, func() {
		p.out.Send(wire.KindKill, nil) // if the channel is broken, receive ends by itself
		select {
		case <-p.done:
		case <-time.After(killLimit):
			p.conn.Close()
		}
	})
	p.release = append(p.release, func() { stop() })
	return nil
}

func (p *process) close() {
	p.conn.Close()
	for _, f := range p.release {
		f()
	}
}

// receive handles the agent's frames until the command has ended.
func (p *process) receive() {
	defer close(p.done)
	defer p.close()
	var writeErr error
	write := func(w io.Writer, b []byte) {
		if w != nil && writeErr == nil {
			_, writeErr = w.Write(b)
		}
	}
	for {
		kind, b, err := wire.Read(p.conn)
		if err != nil {
			p.err = fmt.Errorf("%s: %w", p.c, p.explain(err))
			return
		}
		switch kind {
		case wire.KindStdout:
			write(p.c.Stdout, b)
		case wire.KindStderr:
			write(p.c.Stderr, b)
		case wire.KindTaken:
			<-p.credit
		case wire.KindLost:
			p.err = fmt.Errorf("%s: %w", p.c, lostError(b))
			return
		case wire.KindExit:
			p.err = errors.Join(p.exitError(b), writeErr)
			return
		}
	}
}

// lostError is ErrLost with the text received from another process.
type lostError string

func (e lostError) Error() string   { return string(e) }
func (e lostError) Is(t error) bool { return t == ErrLost }

func (p *process) exitError(b []byte) error {
	var e wire.Exit
	if err := json.Unmarshal(b, &e); err != nil {
		return err
	}
	if err := host.NewExitError(p.c.Argv, syscall.WaitStatus(e.Status)); err != nil {
		return err
	}
	if e.Err != "" {
		return fmt.Errorf("%s: %s", p.c, e.Err)
	}
	return nil
}

// sendInput copies the input and closes it. It may outlive the command, as the input itself may.
func (p *process) sendInput() {
	b := make([]byte, 16<<10)
	for p.c.Stdin != nil {
		n, err := p.c.Stdin.Read(b)
		if n > 0 && !p.sendInputFrame(b[:n]) {
			return
		}
		if err != nil {
			break
		}
	}
	p.sendInputFrame(nil)
}

func (p *process) sendInputFrame(b []byte) bool {
	select {
	case p.credit <- struct{}{}:
		return p.out.Send(wire.KindStdin, b) == nil
	case <-p.done:
		return false
	}
}

// Pid implements host.Process.
func (p *process) Pid() int { return p.pid }

// Signal implements host.Process.
func (p *process) Signal(s syscall.Signal) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
		return p.out.SendJSON(wire.KindSignal, s)
	}
}

// Wait implements host.Process.
func (p *process) Wait() error {
	<-p.done
	if p.err != nil && p.ctx.Err() != nil {
		return fmt.Errorf("%s: %w", p.c, p.ctx.Err())
	}
	return p.err
}
