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

// ServerOptions configure a Server. Its functions are called from one connection's goroutine each.
type ServerOptions struct {
	// Socket is the path of the unix socket. Its directory is created, accessible to this user only.
	Socket string
	Log    *slog.Logger
	// Change is called with each change from a speaker; the first change of a connection is complete.
	Change func(plan.BGPChange)
	// Connected is called when a speaker connects or disconnects.
	Connected func(bool)
	// Health answers probes.
	Health func(context.Context) (Health, error)
}

// Server is the server side in ironlb-bgpd: one speaker at a time, where the newest replaces the previous one, and any
// number of probes.
type Server struct {
	o ServerOptions

	mu       sync.Mutex
	sessions map[string]plan.Session
	speaker  *link // nil if there is none
	replace  context.CancelCauseFunc
	gone     chan struct{} // closed when the speaker has disconnected
}

// NewServer returns a server; Run listens.
func NewServer(o ServerOptions) *Server {
	return &Server{o: o, sessions: map[string]plan.Session{}}
}

// Report publishes changed session states. It never blocks, and keeps its argument.
func (s *Server) Report(r plan.BGPReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	applyReport(s.sessions, r)
	if s.speaker != nil {
		s.speaker.sendReport(r)
	}
}

// Run serves until ctx ends. It returns an error at once if it cannot listen on the socket.
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

// acceptPause is the pause between two attempts to accept a connection.
const acceptPause = 200 * time.Millisecond

// accept returns the next connection, or nil when ctx has ended. A temporary failure, such as too many open files, must
// not end BFD, which runs alongside: it is retried.
func (s *Server) accept(ctx context.Context, next func() (*net.UnixConn, error)) (*net.UnixConn, error) {
	logged := ""
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
		case logged != err.Error():
			logged = err.Error()
			s.o.Log.Warn("accept failed, retrying", "socket", s.o.Socket, "reason", err)
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
		s.o.Log.Warn("connection refused", "socket", s.o.Socket, "reason", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	c := NewConn(conn)
	hello, err := c.Answer(Process)
	stop()
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.o.Log.Warn("connection refused", "socket", s.o.Socket, "reason", err)
	case hello.Role == Probe:
		s.answer(ctx, c)
	case hello.Role == Speaker:
		s.serveSpeaker(ctx, c)
	default:
		s.o.Log.Warn("connection refused", "socket", s.o.Socket, "reason", fmt.Sprintf("unsupported role %q", hello.Role))
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
		<-before // its last messages must precede those of this speaker
		s.mu.Lock()
	}
	s.speaker, s.replace, s.gone = l, cancel, gone
	l.sendReport(fullReport(s.sessions))
	s.mu.Unlock()
	s.o.Connected(true)
	s.o.Log.Info("speaker connected")

	first := true
	err := l.run(ctx, func(m Message) error {
		switch {
		case m.Change == nil:
			return errors.New("a speaker sent a message other than a change")
		case first && !m.Change.Full:
			return errors.New("the first change of a speaker is not complete")
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
		s.o.Log.Info("speaker disconnected, its configuration is kept", "reason", text(err))
	}
}
