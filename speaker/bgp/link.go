package bgp

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/ironlb/ironlb/speaker/plan"
)

// link is a connection with a queue of pending, merged messages: senders do not wait, and a slow reader gets the latest
// state.
type link struct {
	conn *Conn
	wake chan struct{}

	mu     sync.Mutex
	urgent []Message // sent before the others
	change *plan.BGPChange
	report *plan.BGPReport
}

func newLink(conn *Conn) *link { return &link{conn: conn, wake: make(chan struct{}, 1)} }

func (l *link) sendChange(c plan.BGPChange) {
	l.put(func() {
		if l.change == nil {
			l.change = new(plan.BGPChange)
		}
		addChange(l.change, c)
	})
}

func (l *link) sendReport(r plan.BGPReport) {
	l.put(func() {
		if l.report == nil {
			l.report = new(plan.BGPReport)
		}
		addReport(l.report, r)
	})
}

func (l *link) sendUrgent(m Message) {
	l.put(func() { l.urgent = append(l.urgent, m) })
}

func (l *link) put(add func()) {
	l.mu.Lock()
	add()
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// next returns the next message to send.
func (l *link) next() (m Message, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.urgent) > 0:
		m, l.urgent = l.urgent[0], l.urgent[1:]
	case l.change != nil:
		m, l.change = Message{Change: l.change}, nil
	case l.report != nil:
		m, l.report = Message{Report: l.report}, nil
	default:
		return m, false
	}
	return m, true
}

// errReplaced ends a link in favour of a newer one.
var errReplaced = errors.New("another speaker has connected")

// run sends pending messages and passes received ones to handle, until ctx ends, the connection does, or handle fails.
// It closes the connection. If ctx ends with the cause errReplaced, that is sent to the other side.
func (l *link) run(ctx context.Context, handle func(Message) error) error {
	group, inner := errgroup.WithContext(ctx)
	stop := context.AfterFunc(inner, func() {
		if cause := context.Cause(ctx); errors.Is(cause, errReplaced) {
			_ = l.conn.Send(Message{Refused: cause.Error()}) // best effort: the reason
		}
		l.conn.Close()
	})
	defer stop()
	group.Go(func() error {
		for {
			m, err := l.conn.Receive()
			if err != nil {
				return err
			}
			if err := handle(m); err != nil {
				return err
			}
		}
	})
	group.Go(func() error {
		for {
			select {
			case <-inner.Done():
				return inner.Err()
			case <-l.wake:
			}
			for m, ok := l.next(); ok; m, ok = l.next() {
				if err := l.conn.Send(m); err != nil {
					return err
				}
			}
		}
	})
	err := group.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
