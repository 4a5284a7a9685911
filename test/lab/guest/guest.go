// Package guest boots Debian's kernel under QEMU on this machine's own files, and runs commands in it, for machines
// whose kernel has no IPVS.
//
// The guest sees the entire file system of this machine; its writes stay in its memory and end with it. Installed
// programs are cached without revalidation. Folders in Config.Shares are not cached, and written through: a program in
// one takes ten times as long to start as a cached one.
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

// Config of a guest. The zero value boots a guest without a network.
type Config struct {
	Links  []Link   // the network cards
	Shares []string // folders of this machine to share, by absolute path
	// Programs are folders inside a share, by absolute path, whose present files do not change: they are cached, and
	// read-only in the guest.
	Programs []string

	MemoryMiB int           // 0: 3072
	CPUs      int           // 0: this machine's, at least 2 and at most 4, or IRONLB_LAB_CPUS
	Accel     string        // "kvm" or "tcg"; empty: kvm if it really boots
	BootLimit time.Duration // 0: two minutes
	HangLimit time.Duration // timeout of a silent guest; 0: 90 seconds, for a host that stalls

	Console io.Writer    // receives the guest's console; nil: only errors have it
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

// Guest is a running guest. It is a host.Host.
type Guest struct {
	Kernel Kernel
	Accel  string        // accelerator of the boot
	Boot   time.Duration // from the start of QEMU to the agent's greeting

	qemu    *exec.Cmd
	exited  chan struct{} // closed when QEMU has ended
	exit    error         // why QEMU ended; read it after exited
	console *tail
	channel net.Conn
	monitor *monitor
	session *yamux.Session

	stop context.CancelFunc
	lost chan struct{} // closed when the guest is no longer usable
	err  error         // the reason; read it after lost
}

// Start boots a guest and returns when it accepts commands. The guest ends with ctx, with Close, or with any end of
// this process.
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

// Start implements host.Host. A relative Dir is not allowed; an empty one is /.
func (g *Guest) Start(ctx context.Context, c host.Cmd) (host.Process, error) {
	stream, err := g.session.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("start %s in the guest: %w", c, g.explain(err))
	}
	return start(ctx, stream, c, g.explain)
}

// Close ends the guest and returns when QEMU has ended. Running commands fail.
func (g *Guest) Close() error {
	g.stop()
	<-g.lost
	return nil
}

// Lost is closed when the guest is no longer usable; Err then returns the reason.
func (g *Guest) Lost() <-chan struct{} { return g.lost }

// Err waits until the guest is lost and returns the reason. It wraps ErrLost.
func (g *Guest) Err() error {
	<-g.lost
	return g.err
}

// explain replaces an error of the channel by the reason for the guest's loss.
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

// watch waits for the end of QEMU or of the channel and determines the cause.
func (g *Guest) watch(ctx context.Context, c Config) {
	cause := ""
	select {
	case <-ctx.Done():
		cause = "it was stopped"
	case <-g.exited:
	case <-g.session.CloseChan():
		// The channel of an ending guest closes first.
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
	conf.LogOutput = g.console // the session's errors belong in the last lines
	g.session, err = yamux.Client(g.channel, conf)
	return err
}
