// Package guest boots Debian's kernel under QEMU on this machine's own files,
// and runs commands in it, for machines whose kernel has no IPVS.
//
// The guest sees the whole file system of this machine; what it writes there
// stays in its memory and is gone with it. Installed programs are read once
// and then trusted. Folders named in Config.Shares are seen as they are at any
// moment, and written through.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
	"github.com/ironlb/ironlb/test/lab/host"
)

// Config says what to boot. Its zero value boots a guest without a network.
type Config struct {
	Links  []Link   // the network cards
	Shares []string // folders of this machine to share, by absolute path

	MemoryMiB int           // 0: 3072
	CPUs      int           // 0: this machine's, at least 2 and at most 4
	Accel     string        // "kvm" or "tcg"; empty: kvm where it really boots
	BootLimit time.Duration // 0: two minutes
	HangLimit time.Duration // how long a guest may be silent; 0: 90 seconds, for a host that stands still

	Console io.Writer    // gets the guest's console too; nil: only errors carry it
	Log     *slog.Logger // nil: silent
}

func (c Config) withDefaults() Config {
	if c.MemoryMiB == 0 {
		c.MemoryMiB = 3072
	}
	if c.BootLimit == 0 {
		c.BootLimit = 2 * time.Minute
	}
	if c.HangLimit == 0 {
		c.HangLimit = 90 * time.Second
	}
	if c.Console == nil {
		c.Console = io.Discard
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// ErrLost is in the error of every command whose guest ended, panicked or hung.
var ErrLost = errors.New("the guest is lost")

// Guest is one that runs. It is a host.Host.
type Guest struct {
	Kernel Kernel
	Accel  string        // what it was booted with
	Boot   time.Duration // from the start of QEMU to the agent's greeting

	qemu    *exec.Cmd
	exited  chan struct{} // closed when QEMU has ended
	exit    error         // why QEMU ended; read it after exited
	console *tail
	channel net.Conn
	monitor *monitor
	session *yamux.Session

	stop context.CancelFunc
	lost chan struct{} // closed when the guest can no longer be used
	err  error         // why; read it after lost
}

// Start boots a guest and returns when it takes commands. It ends with ctx,
// with Close, or with this process, however that ends.
func Start(ctx context.Context, c Config) (*Guest, error) {
	c = c.withDefaults()
	b, err := prepare(ctx, &c)
	if err != nil {
		return nil, err
	}
	if c.Accel == "" {
		if c.Accel, err = chooseAccel(ctx, b, c); err != nil {
			return nil, err
		}
	}
	return b.boot(ctx, c)
}

// Start implements host.Host. A relative Dir is not allowed; none is /.
func (g *Guest) Start(ctx context.Context, c host.Cmd) (host.Process, error) {
	stream, err := g.session.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("start %s in the guest: %w", c, g.explain(err))
	}
	return start(ctx, stream, c, g.explain)
}

// Close ends the guest and returns when QEMU is gone. Commands that still run
// in it fail.
func (g *Guest) Close() error {
	g.stop()
	<-g.lost
	return nil
}

// Lost is closed when the guest can no longer be used; Err says why then.
func (g *Guest) Lost() <-chan struct{} { return g.lost }

// Err waits until the guest is lost and returns why. It wraps ErrLost.
func (g *Guest) Err() error {
	<-g.lost
	return g.err
}

// explain replaces an error of the channel by what happened to the guest.
func (g *Guest) explain(err error) error {
	select {
	case <-g.lost:
		return g.err
	case <-g.session.CloseChan():
		return g.Err()
	default:
		return err
	}
}

// watch waits for the end of QEMU or of the channel and settles the cause.
func (g *Guest) watch(ctx context.Context, c Config) {
	cause := ""
	select {
	case <-ctx.Done():
		cause = "it was stopped"
	case <-g.exited:
	case <-g.session.CloseChan():
		// A guest that ends closes its channel first.
		select {
		case <-g.exited:
		case <-time.After(2 * time.Second):
			cause = fmt.Sprintf("its agent did not answer for %s", c.HangLimit)
		}
	}
	g.qemu.Process.Kill()
	<-g.exited
	<-g.console.closed
	if cause == "" {
		cause = fmt.Sprintf("its kernel stopped (QEMU: %v)", g.exit)
	}
	g.session.Close()
	g.channel.Close()
	g.monitor.close()
	g.err = fmt.Errorf("%w: %s; its console's last lines:\n%s", ErrLost, cause, g.console)
	close(g.lost)
}

// greet waits for the agent and opens the session on its channel.
func (g *Guest) greet(ctx context.Context, c Config) error {
	ctx, cancel := context.WithTimeout(ctx, c.BootLimit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { g.channel.SetReadDeadline(time.Unix(1, 0)) })
	line := make([]byte, len(wire.Ready))
	_, err := io.ReadFull(g.channel, line)
	if !stop() || ctx.Err() != nil {
		return fmt.Errorf("no greeting from its agent: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("no greeting from its agent: %w", err)
	}
	if string(line) != wire.Ready {
		return fmt.Errorf("greeting from its agent: have %q, want %q", line, wire.Ready)
	}
	conf := yamux.DefaultConfig()
	conf.KeepAliveInterval = c.HangLimit / 3
	conf.ConnectionWriteTimeout = c.HangLimit - c.HangLimit/3
	conf.LogOutput = g.console // why the session broke belongs to the last lines
	g.session, err = yamux.Client(g.channel, conf)
	return err
}
