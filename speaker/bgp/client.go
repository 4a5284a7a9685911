package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Pauses between attempts to connect. ironlb-bgpd may be starting again, and routers wait until it has received its
// configuration.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
	// refusedRetry is the pause after a refusal: two speakers must not replace each other repeatedly.
	refusedRetry = 5 * time.Second
)

// ClientOptions configure a Client.
type ClientOptions struct {
	// Socket is the path of the unix socket of ironlb-bgpd.
	Socket string
	Log    *slog.Logger
	// Wake is called when the result of Sessions has changed. It does not block.
	Wake func()
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Client sends the BGP configuration to ironlb-bgpd, and receives the states of the sessions. Its methods may be called
// from any goroutine.
type Client struct {
	o ClientOptions

	mu         sync.Mutex
	isSet      bool // wanted is set
	wanted     plan.BGP
	announcing announcing
	link       *link // nil while not connected
	// sessions are the reported states; nil until the first report on this connection.
	sessions map[string]plan.Session
	// away is since when ironlb-bgpd is unreachable, and why is the reason; zero while it is reachable or not contacted
	// yet.
	away time.Time
	why  string
}

// NewClient returns a client that connects once it runs.
func NewClient(o ClientOptions) *Client { return &Client{o: o, announcing: newAnnouncing(o.Metrics)} }

// Set applies a change. The first change must be complete. Set never blocks, and keeps its argument.
func (c *Client) Set(change plan.BGPChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change.Serial = c.announcing.set(change, c.isSet, time.Now())
	c.wanted.Apply(change)
	if !c.isSet {
		c.isSet = true
		change = fullChange(c.wanted)
	}
	if c.link != nil {
		c.link.sendChange(change)
	}
}

// Sessions returns the states of the sessions, by the name of the peer. A peer may be missing until its session begins.
func (c *Client) Sessions() map[string]plan.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions != nil || c.away.IsZero() {
		return maps.Clone(c.sessions)
	}
	out := make(map[string]plan.Session, len(c.wanted.Peers))
	for name := range c.wanted.Peers {
		out[name] = plan.Session{State: plan.SessionIdle, Since: c.away, Reason: plan.NoBGPProcess, Message: c.why}
	}
	return out
}

// Blank reports whether ironlb-bgpd has reported that it has no peers.
func (c *Client) Blank() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions != nil && len(c.sessions) == 0
}

// Run maintains a connection until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	retry := firstRetry
	for {
		err := c.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if c.lost(err) { // without a report, the next connection may fail in the same way
			retry = firstRetry
		}
		wait := retry
		if _, refused := errors.AsType[Refused](err); refused {
			wait = refusedRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		retry = min(2*retry, lastRetry)
	}
}

// connect connects, and returns when the connection has ended.
func (c *Client) connect(ctx context.Context) error {
	conn, err := dial(ctx, c.o.Socket, Speaker)
	if err != nil {
		return err
	}
	l := newLink(conn)
	c.mu.Lock()
	c.link = l
	if c.isSet {
		l.sendChange(fullChange(c.wanted))
	}
	c.mu.Unlock()
	return l.run(ctx, c.receive)
}

// dial connects to ironlb-bgpd, which must run as the same user, because it receives passwords.
func dial(ctx context.Context, socket string, role Role) (*Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("connect to ironlb-bgpd: %w", err)
	}
	c := NewConn(conn)
	if err = sameUser(conn.(*net.UnixConn)); err == nil {
		_, err = c.Call(role)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to ironlb-bgpd on %s: %w", socket, err)
	}
	return c, nil
}

func (c *Client) receive(m Message) error {
	if m.Report == nil {
		return errors.New("ironlb-bgpd sent a message other than a report")
	}
	c.mu.Lock()
	if c.sessions == nil {
		if !m.Report.Full {
			c.mu.Unlock()
			return errors.New("the first report is not complete")
		}
		c.sessions = map[string]plan.Session{}
		c.o.Log.Info("connected to ironlb-bgpd", "socket", c.o.Socket)
	}
	applyReport(c.sessions, *m.Report)
	c.announcing.applied(m.Report.Applied, time.Now())
	c.away, c.why = time.Time{}, ""
	c.mu.Unlock()
	if m.Report.Full || len(m.Report.Sessions) > 0 {
		c.o.Wake()
	}
	return nil
}

// lost records that there is no connection, and reports whether a report was received on the last one. The loss is
// logged if there was a report, or, once per reason, if a connection is needed.
func (c *Client) lost(err error) (reported bool) {
	why := "ironlb-bgpd does not answer: " + text(err)
	c.mu.Lock()
	changed := c.why != why
	needed := len(c.wanted.Peers) > 0
	reported = c.sessions != nil
	if c.away.IsZero() {
		c.away = time.Now()
	}
	c.link, c.sessions, c.why = nil, nil, why
	c.mu.Unlock()
	switch {
	case reported:
		c.o.Log.Warn("lost the connection to ironlb-bgpd, reconnecting", "socket", c.o.Socket, "reason", text(err))
	case changed && needed:
		c.o.Log.Warn("cannot connect to ironlb-bgpd, retrying", "socket", c.o.Socket, "reason", text(err))
	}
	if changed {
		c.o.Wake()
	}
	return reported
}

func text(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return "it closed the connection"
	}
	return err.Error()
}

// QueryHealth queries the health of the ironlb-bgpd at a socket.
func QueryHealth(ctx context.Context, socket string) (Health, error) {
	conn, err := dial(ctx, socket, Probe)
	if err != nil {
		return Health{}, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	m, err := conn.Receive()
	if err != nil {
		return Health{}, fmt.Errorf("query the health of ironlb-bgpd: %w", errors.Join(err, context.Cause(ctx)))
	}
	if m.Health == nil {
		return Health{}, errors.New("query the health of ironlb-bgpd: unexpected answer")
	}
	return *m.Health, nil
}
