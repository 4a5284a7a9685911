package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/ironlb/ironlb/speaker/unixsocket"
)

// errReplaced ends the connection of a speaker in favour of a newer one.
var errReplaced = errors.New("another speaker has connected")

// connection is that of the speaker; the newest one replaces the previous one.
type connection struct {
	replace context.CancelCauseFunc
	gone    chan struct{} // closed when it has ended
	sent    uint64        // Daemon.version of the last status sent to it
}

// listen serves the speaker and health probes until ctx ends. It returns an error at once if it cannot listen.
func (d *Daemon) listen(ctx context.Context) error {
	listener, err := unixsocket.Listen("--socket", d.o.Socket)
	if err != nil {
		return err
	}
	defer listener.Release()
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { listener.Close() })() // of the context that accept checks: it ends first
	for {
		conn, err := accept(ctx, d.o.Log, listener.AcceptUnix)
		if conn == nil {
			return err
		}
		all.Go(func() { d.serve(ctx, conn) })
	}
}

// acceptPause is the pause between two attempts to accept a connection.
const acceptPause = 200 * time.Millisecond

// accept returns the next connection, or nil when ctx has ended. A temporary failure, such as too many open files, must
// not end BFD, which runs alongside: it is retried.
func accept(ctx context.Context, log *slog.Logger, next func() (*net.UnixConn, error)) (*net.UnixConn, error) {
	logged := ""
	for {
		conn, err := next()
		switch {
		case err == nil:
			return conn, nil // serve closes it if ctx has ended
		case ctx.Err() != nil:
			return nil, nil
		case errors.Is(err, net.ErrClosed):
			return nil, fmt.Errorf("accept connections: %w", err)
		case logged != err.Error():
			logged = err.Error()
			log.Warn("accept failed, retrying", "reason", err)
		}
		sleep(ctx, acceptPause)
	}
}

// serve sends the status. If no request follows, the other side is a health probe; if one for metrics does, it has them
// for a scraper; otherwise it is the speaker.
func (d *Daemon) serve(ctx context.Context, raw *net.UnixConn) {
	c := newConn(raw)
	defer c.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, errReplaced) {
			c.refuse(cause)
		}
		c.Close()
	})()
	if err := unixsocket.SameUser(raw); err != nil {
		d.o.Log.Warn("connection refused", "socket", d.o.Socket, "reason", err)
		return
	}
	status, _ := d.currentStatus()
	err := errors.Join(c.SetReadDeadline(time.Now().Add(firstLimit)), c.send(status))
	var first request
	if err == nil {
		err = c.receive(&first)
	}
	switch {
	case errors.Is(err, io.EOF), ctx.Err() != nil: // a probe has its answer
	case err != nil:
		d.o.Log.Warn("connection refused", "socket", d.o.Socket, "reason", err)
		c.refuse(err)
	case first.Metrics:
		d.sendMetrics(c)
	default:
		d.serveSpeaker(c, cancel, first)
	}
}

// refuse sends the reason, if that is possible.
func (c *conn) refuse(why error) { _ = c.send(Status{Refused: why.Error()}) }

func (d *Daemon) sendMetrics(c *conn) {
	text, err := exposition(d.o.Gatherer)
	if err != nil {
		d.o.Log.Warn("metrics not sent", "reason", err)
		c.refuse(err)
		return
	}
	_ = c.send(Status{Metrics: text}) // fails when the speaker has disconnected
}

func (d *Daemon) serveSpeaker(c *conn, replace context.CancelCauseFunc, first request) {
	s := &connection{replace: replace, gone: make(chan struct{})}
	defer close(s.gone)
	d.mu.Lock()
	for d.speaker != nil {
		before := d.speaker
		before.replace(errReplaced)
		d.mu.Unlock()
		<-before.gone // its last changes must precede those of this speaker
		d.mu.Lock()
	}
	d.speaker = s
	d.connected()
	d.mu.Unlock()
	d.o.Log.Info("speaker connected")

	began := false
	handle := func(r request) (err error) {
		switch {
		case r.Change == nil:
			err = errors.New("the speaker sent a message without a change")
		case !began && !r.Change.Full:
			err = errors.New("the first change of a speaker is not complete")
		default:
			began = true
			d.change(*r.Change)
			return nil
		}
		c.refuse(err)
		return err
	}
	err := c.SetReadDeadline(time.Time{})
	if err == nil && first.Change != nil {
		err = handle(first)
	}
	if err == nil {
		err = exchange(c, d.changed, func() any { return d.nextStatus(s) }, handle)
	}
	d.mu.Lock()
	d.speaker = nil
	d.connected()
	d.mu.Unlock()
	if !errors.Is(err, net.ErrClosed) { // by this side
		d.o.Log.Info("speaker disconnected, its configuration is kept", "reason", text(err))
	}
}

// nextStatus returns the status for the speaker, nil if it has been sent.
func (d *Daemon) nextStatus(s *connection) any {
	status, version := d.currentStatus()
	if s.sent == version {
		return nil
	}
	s.sent = version
	return status
}

// currentStatus returns the status and its version.
func (d *Daemon) currentStatus() (Status, uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status, d.version
}
