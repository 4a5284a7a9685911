package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Between two tries of what could not be applied.
const (
	firstAgain = time.Second
	lastAgain  = 30 * time.Second
)

var errLeft = errors.New("left")

// ServeFile is Serve on the file by which a child talks.
func ServeFile(ctx context.Context, file uintptr, log *slog.Logger, start func(report func(plan.BGPReport)) Driver) error {
	f := os.NewFile(file, "pair")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return errors.New("this command is for ironlb-bgpd itself to start")
	}
	return Serve(ctx, conn, log, start)
}

// Serve is the child: it has the driver do what the other side of conn wants, and returns when that side ends or has it leave. The
// process is to end then, without a word to the peers.
func Serve(ctx context.Context, conn net.Conn, log *slog.Logger, start func(report func(plan.BGPReport)) Driver) error {
	c := NewConn(conn)
	defer c.Close()
	if _, err := c.Call(Child); err != nil {
		return err
	}
	l := newLink(c)
	w := &worker{log: log, driver: start(l.sendReport), wake: make(chan struct{}, 1)}
	applying, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(stopped)
		w.run(applying)
		return nil
	})
	group.Go(func() error {
		defer stop()
		return l.run(ctx, func(m Message) error {
			switch {
			case m.Change != nil:
				w.add(*m.Change)
			case m.Down != nil:
				w.driver.Down(m.Down.Peer, m.Down.Why)
			case m.Leave != nil:
				stop()
				<-stopped
				w.driver.Leave(ctx)
				return errLeft
			default:
				return errors.New("the parent sent something that a child does not know")
			}
			return nil
		})
	})
	if err := group.Wait(); !errors.Is(err, errLeft) {
		return err
	}
	return nil
}

// worker applies what was received, so that a session can be taken down meanwhile.
type worker struct {
	log    *slog.Logger
	driver Driver
	wake   chan struct{}

	mu   sync.Mutex
	todo *plan.BGPChange
	id   plan.BGPChange // with the router id alone
}

func (w *worker) add(c plan.BGPChange) {
	w.mu.Lock()
	if w.todo == nil {
		w.todo = new(plan.BGPChange)
	}
	addChange(w.todo, c)
	w.id.RouterID = c.RouterID
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run applies until ctx ends. What fails is tried again.
func (w *worker) run(ctx context.Context) {
	again := time.NewTimer(0)
	again.Stop()
	defer again.Stop()
	wait := firstAgain
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-again.C:
		}
		w.mu.Lock()
		c := w.id
		if w.todo != nil {
			c, w.todo = *w.todo, nil
		}
		w.mu.Unlock()
		if err := w.driver.Apply(c); err != nil {
			w.log.Warn("not all of what is wanted could be applied", "error", err, "again in", wait)
			again.Reset(wait)
			wait = min(2*wait, lastAgain)
			continue
		}
		again.Stop()
		wait = firstAgain
	}
}
