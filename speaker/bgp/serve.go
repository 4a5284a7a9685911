package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Pauses before failed changes are applied again.
const (
	firstApplyRetry = time.Second
	lastApplyRetry  = 30 * time.Second
)

// Driver implements BGP.
type Driver interface {
	// Apply applies a change; the first one is complete. After an error it is called again with the full set.
	Apply(change plan.BGPChange) error
	// Down takes a session down at once. It may be called while Apply runs.
	Down(peer, why string)
	// Up reports that the path to a peer works again: a pause between attempts to connect ends at once.
	Up(peer string)
	// Leave withdraws from the peers without graceful restart, or from all, after they had time to choose other paths.
	// It is the last call.
	Leave(ctx context.Context, all bool) error
}

// hangLimit is the time limit of one driver call: 10,000 routes take half a second.
const hangLimit = 30 * time.Second

var errLeft = errors.New("left")

// ServeFile is Serve on the file descriptor of a child's connection.
func ServeFile(ctx context.Context, file uintptr, log *slog.Logger, start func(report func(plan.BGPReport)) Driver) error {
	f := os.NewFile(file, "pair")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return errors.New("this command is only started by ironlb-bgpd")
	}
	return Serve(ctx, conn, log, start)
}

// Serve runs a child: it applies the changes from conn to the driver, and returns when the other side ends or sends
// Leave, or when the driver hangs. The process must end then, and sends nothing to the peers.
func Serve(ctx context.Context, conn net.Conn, log *slog.Logger, start func(report func(plan.BGPReport)) Driver) error {
	c := NewConn(conn)
	defer c.Close()
	if _, err := c.Call(Child); err != nil {
		return err
	}
	l := newLink(c)
	w := &worker{log: log, driver: start(l.sendReport), report: l.sendReport, wake: make(chan struct{}, 1)}
	applying, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(stopped)
		return w.run(applying)
	})
	group.Go(func() error {
		defer stop()
		return l.run(ctx, func(m Message) error {
			switch {
			case m.Change != nil:
				w.add(*m.Change)
			case m.Down != nil:
				return within("take a session down", func() { w.driver.Down(m.Down.Peer, m.Down.Why) })
			case m.Up != nil:
				w.driver.Up(m.Up.Peer)
			case m.Leave != nil:
				stop()
				<-stopped
				if err := w.driver.Leave(ctx, m.Leave.All); err != nil {
					log.Warn("not all peers were notified of the termination", "error", err)
				}
				return errLeft
			default:
				return errors.New("the parent sent an unknown message")
			}
			return nil
		})
	})
	if err := group.Wait(); !errors.Is(err, errLeft) {
		return err
	}
	return nil
}

// worker applies changes in a separate goroutine, so that a session can be taken down meanwhile.
type worker struct {
	log    *slog.Logger
	driver Driver
	report func(plan.BGPReport)
	wake   chan struct{}

	mu     sync.Mutex
	wanted plan.BGP
	todo   *plan.BGPChange
}

func (w *worker) add(c plan.BGPChange) {
	w.mu.Lock()
	if w.todo == nil {
		w.todo = new(plan.BGPChange)
	}
	addChange(w.todo, c)
	w.wanted.Apply(c)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next returns the pending changes, or the full set.
func (w *worker) next(all bool) (c plan.BGPChange, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case all:
		c, ok = fullChange(w.wanted), true
	case w.todo != nil:
		c, ok = *w.todo, true
	}
	w.todo = nil
	return c, ok
}

// within calls a function that may hang; a hang is an error.
func within(what string, do func()) error {
	limit := time.NewTimer(hangLimit)
	defer limit.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
		return nil
	case <-limit.C:
		return fmt.Errorf("GoBGP hangs: it took more than %v to %s; it needs a new process", hangLimit, what)
	}
}

// run applies changes until ctx ends or the driver hangs. It retries failures.
func (w *worker) run(ctx context.Context) error {
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	wait, failed := firstApplyRetry, false
	for {
		all := false
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-retry.C:
			all = failed
		}
		c, ok := w.next(all)
		if !ok {
			continue
		}
		var err error
		if hangs := within("apply a change", func() { err = w.driver.Apply(c) }); hangs != nil {
			w.log.Error("ending this process", "reason", hangs)
			return hangs
		}
		switch {
		case err != nil:
			w.log.Warn("applying the BGP configuration failed", "error", err, "retryIn", wait)
			retry.Reset(wait)
			wait, failed = min(2*wait, lastApplyRetry), true
		case c.Full: // earlier failures are applied now
			retry.Stop()
			wait, failed = firstApplyRetry, false
		}
		if !failed && c.Serial != 0 {
			w.report(plan.BGPReport{Applied: c.Serial})
		}
	}
}
