package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// ServerOptions are what a Server needs. Its functions are called from one connection's goroutine each.
type ServerOptions struct {
	// Socket is the path of the unix socket. Its folder is made, for this user alone.
	Socket string
	Log    *slog.Logger
	// Change is told what a speaker wants; the first change of a connection is whole.
	Change func(plan.BGPChange)
	// Connected is told whether there is a speaker.
	Connected func(bool)
	// Health is asked for probes.
	Health func(context.Context) (Health, error)
}

// Server is the side of ironlb-bgpd: one speaker at a time, the newest wins, and any number of probes.
type Server struct {
	o ServerOptions

	mu       sync.Mutex
	sessions map[string]plan.Session
	speaker  *link // nil without
	replace  context.CancelCauseFunc
	gone     chan struct{} // closed when the speaker has gone
}

// NewServer returns a server that listens once it runs.
func NewServer(o ServerOptions) *Server {
	return &Server{o: o, sessions: map[string]plan.Session{}}
}

// Report says what is new of the sessions. It never blocks, and keeps what it is given.
func (s *Server) Report(r plan.BGPReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	applyReport(s.sessions, r)
	if s.speaker != nil {
		s.speaker.sendReport(r)
	}
}

// Run answers until ctx ends. It returns an error at once if the socket cannot be had.
func (s *Server) Run(ctx context.Context) error {
	listener, err := listen(s.o.Socket)
	if err != nil {
		return err
	}
	defer listener.close()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		conn, err := s.accept(ctx, listener.AcceptUnix) // not serving, which may end a moment after the listener is closed
		if conn == nil {
			return err
		}
		all.Go(func() { s.serve(serving, conn) })
	}
}

// acceptPause is between two tries to accept a connection.
const acceptPause = 200 * time.Millisecond

// accept returns the next connection, or nil when ctx has ended. What fails for a while, as when there are too many open files, must not end
// BFD, which runs beside it: it is tried again.
func (s *Server) accept(ctx context.Context, next func() (*net.UnixConn, error)) (*net.UnixConn, error) {
	said := ""
	for {
		conn, err := next()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil, nil
		case err == nil:
			return conn, nil
		case errors.Is(err, net.ErrClosed):
			return nil, fmt.Errorf("accept on %s: %w", s.o.Socket, err)
		case said != err.Error():
			said = err.Error()
			s.o.Log.Warn("cannot accept a connection; it is tried again", "socket", s.o.Socket, "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(acceptPause):
		}
	}
}

func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	if err := sameUser(conn); err != nil {
		s.o.Log.Warn("refuse a connection", "socket", s.o.Socket, "reason", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	c := NewConn(conn)
	hello, err := c.Answer(Process)
	stop()
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.o.Log.Warn("refuse a connection", "socket", s.o.Socket, "reason", err)
	case hello.Role == Probe:
		s.answer(ctx, c)
	case hello.Role == Speaker:
		s.serveSpeaker(ctx, c)
	default:
		s.o.Log.Warn("refuse a connection", "socket", s.o.Socket, "reason", fmt.Sprintf("nothing is said to a %q", hello.Role))
	}
}

func (s *Server) answer(ctx context.Context, c *Conn) {
	h, err := s.o.Health(ctx)
	if err == nil {
		err = c.Send(Message{Health: &h})
	}
	if err != nil && ctx.Err() == nil {
		s.o.Log.Warn("cannot answer a health probe", "reason", err)
	}
}

func (s *Server) serveSpeaker(ctx context.Context, c *Conn) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := newLink(c)
	gone := make(chan struct{})
	defer close(gone)
	s.mu.Lock()
	for s.speaker != nil {
		before := s.gone
		s.replace(errReplaced)
		s.mu.Unlock()
		<-before // what it said last comes before what this one says
		s.mu.Lock()
	}
	s.speaker, s.replace, s.gone = l, cancel, gone
	l.sendReport(wholeReport(s.sessions))
	s.mu.Unlock()
	s.o.Connected(true)
	s.o.Log.Info("a speaker has connected")

	first := true
	err := l.run(ctx, func(m Message) error {
		switch {
		case m.Change == nil:
			return errors.New("a speaker sent something that is no change")
		case first && !m.Change.Whole:
			return errors.New("the first change of a speaker is not whole")
		}
		first = false
		s.o.Change(*m.Change)
		return nil
	})
	s.mu.Lock()
	s.speaker = nil
	s.mu.Unlock()
	s.o.Connected(false)
	if err != nil && !errors.Is(err, context.Canceled) {
		s.o.Log.Info("the speaker is gone; what it wanted stays", "reason", text(err))
	}
}
