package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/speaker/unixsocket"
)

// TestAcceptAgain: a process with too many open files continues when it has fewer, and does not fill the log.
func TestAcceptAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		full := &net.OpError{Op: "accept", Net: "unix", Err: syscall.EMFILE}
		tries := 0
		began := time.Now()
		conn, err := accept(t.Context(), logger, func() (*net.UnixConn, error) {
			if tries++; tries <= 5 {
				return nil, full
			}
			return new(net.UnixConn), nil
		})
		if conn == nil || err != nil || tries != 6 || time.Since(began) != 5*acceptPause {
			t.Errorf("after %d tries and %v: %v, %v", tries, time.Since(began), conn, err)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("it is logged %d times:\n%s", n, log.String())
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if conn, err := accept(ctx, logger, func() (*net.UnixConn, error) { return nil, full }); conn != nil || err != nil {
			t.Errorf("at the end: %v, %v", conn, err)
		}
		if conn, err := accept(t.Context(), logger, func() (*net.UnixConn, error) { return nil, net.ErrClosed }); conn != nil || !errors.Is(err, net.ErrClosed) {
			t.Errorf("without a listener: %v, %v", conn, err)
		}
	})
}

// TestSendsNothing: an ironlb-bgpd that accepts the connection and ends it without a status is contacted less and less
// often, and logged once.
func TestSendsNothing(t *testing.T) {
	path := socketPath(t)
	l, err := unixsocket.Listen("--socket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	met := make(chan time.Time)
	go func() {
		defer close(met)
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn.Close()
			met <- time.Now()
		}
	}()
	var log strings.Builder
	c := NewClient(ClientOptions{Socket: path, Log: slog.New(slog.NewTextHandler(&log, nil)), Wake: func() {}})
	c.Set(two())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	first := <-met
	var last time.Time
	for range 5 {
		last = <-met
	}
	if took := last.Sub(first); took < 31*firstRetry {
		t.Errorf("it was called five times more within %v", took)
	}
	cancel()
	go l.Close()
	for range met {
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "level="); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, log.String())
	}
}
