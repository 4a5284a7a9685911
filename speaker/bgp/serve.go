package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Pauses before failed changes are applied again.
const (
	firstApplyRetry = time.Second
	lastApplyRetry  = 30 * time.Second
)

// Driver implements BGP with one peer.
type Driver interface {
	// Apply applies a change of the peer and of routes; nil ones are withdrawn. The first one is full: anything missing
	// is withdrawn. After an error it is called again with the same change, or with that and later ones.
	Apply(full bool, peer routes.Peer, prefixes map[netip.Prefix]*view.Attributes) error
	// Down takes the session down at once. It may be called while Apply runs.
	Down(why string)
	// Up reports that the path to the peer works again: a pause between attempts to connect ends at once.
	Up()
	// Leave ends the session: of a removed peer at once, otherwise after the peer had time to choose other paths. It is
	// the last call.
	Leave(ctx context.Context, removed bool) error
}

// hangLimit is the time limit of one driver call: 10,000 routes take half a second.
const hangLimit = 30 * time.Second

var errLeft = errors.New("left")

// ServeFile is Serve on the file descriptor of a child's connection.
func ServeFile(ctx context.Context, file uintptr, log *slog.Logger, start func(report func(routes.Session)) Driver) error {
	f := os.NewFile(file, "pair")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return errors.New("this command is only started by ironlb-bgpd")
	}
	return Serve(ctx, conn, log, start)
}

// Serve runs a child: it applies the changes from the connection to the driver, and returns when the other side ends or
// sends Leave, or when the driver hangs. The process must end then, and sends nothing to the peer.
func Serve(ctx context.Context, raw net.Conn, log *slog.Logger, start func(report func(routes.Session)) Driver) error {
	c := newConn(raw)
	defer c.Close()
	w := &worker{log: log, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	w.driver = start(w.report)
	applying, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { c.Close() })()
	group.Go(func() error {
		defer close(stopped)
		return w.run(applying)
	})
	group.Go(func() error {
		defer stop()
		return exchange(c, w.changed, w.next, func(o order) error {
			switch {
			case o.Change != nil:
				w.add(*o.Change)
			case o.Down != "":
				return within("take a session down", func() { w.driver.Down(o.Down) })
			case o.Up:
				w.driver.Up()
			case o.Leave != nil:
				stop()
				<-stopped
				if err := w.driver.Leave(ctx, o.Leave.Removed); err != nil {
					log.Warn("the peer was not notified of the termination", "error", err)
				}
				return errLeft
			}
			return nil
		})
	})
	if err := group.Wait(); !errors.Is(err, errLeft) {
		return err
	}
	return nil
}

// worker applies changes in a separate goroutine, so that the session can be taken down meanwhile.
type worker struct {
	log           *slog.Logger
	driver        Driver
	wake, changed chan struct{} // there is something to apply, to send

	mu     sync.Mutex
	todo   *PeerChange
	status *peerStatus // nil until the driver has reported
	// applied is the serial of the last applied change; unsent is set if status or applied is not sent.
	applied uint64
	unsent  bool
}

// add adds a change to those to apply.
func (w *worker) add(c PeerChange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.todo == nil {
		w.todo = new(PeerChange)
	}
	w.todo.add(c)
	trigger(w.wake)
}

// putBack returns a failed change to those to apply, before later ones.
func (w *worker) putBack(c *PeerChange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.todo != nil {
		c.add(*w.todo)
		trigger(w.wake)
	}
	w.todo = c
}

// take returns the changes to apply.
func (w *worker) take() *PeerChange {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.todo
	w.todo = nil
	return c
}

// report records the state of the session.
func (w *worker) report(s routes.Session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status, w.unsent = &peerStatus{Session: s}, true
	trigger(w.changed)
}

// done records that changes are applied.
func (w *worker) done(serial uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applied, w.unsent = serial, true
	trigger(w.changed)
}

// next returns the status, nil if it has been sent.
func (w *worker) next() any {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.unsent || w.status == nil {
		return nil
	}
	w.unsent = false
	return peerStatus{w.status.Session, w.applied}
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
	var retry <-chan time.Time
	wait := firstApplyRetry
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-retry:
		}
		c := w.take()
		if c == nil {
			continue
		}
		var err error
		if hangs := within("apply a change", func() { err = w.driver.Apply(c.Full, c.Peer, c.Routes) }); hangs != nil {
			w.log.Error("ending this process", "reason", hangs)
			return hangs
		}
		if err != nil {
			w.log.Warn("applying the BGP configuration failed", "error", err, "retryIn", wait)
			w.putBack(c)
			retry = time.After(wait)
			wait = min(2*wait, lastApplyRetry)
			continue
		}
		retry, wait = nil, firstApplyRetry
		w.done(c.Serial)
	}
}
