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

// Between two tries to connect. ironlb-bgpd may be on its way up again, and while it is not told what to say the routers wait.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
	// refusedRetry is after a refusal: two speakers that take the place of one another should not do so all the time.
	refusedRetry = 5 * time.Second
)

// ClientOptions are what a Client needs.
type ClientOptions struct {
	// Socket is the path of the unix socket of ironlb-bgpd.
	Socket string
	Log    *slog.Logger
	// Kick is called when Sessions returns something else. It does not block.
	Kick func()
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Client tells ironlb-bgpd what is wanted, and knows how the sessions are. Its methods may be called from any goroutine.
type Client struct {
	o ClientOptions

	mu     sync.Mutex
	isSet  bool // wanted is known
	wanted plan.BGP
	told   announcing
	link   *link // nil while not connected
	// sessions as reported; nil until there was a report on this connection.
	sessions map[string]plan.Session
	// away is since when there is no ironlb-bgpd to talk to, and why says more; zero while there is, or that is not known yet.
	away time.Time
	why  string
}

// NewClient returns a client that connects once it runs.
func NewClient(o ClientOptions) *Client { return &Client{o: o, told: newAnnouncing(o.Metrics)} }

// Set says what is new. The first one must be whole. It never blocks, and keeps what it is given.
func (c *Client) Set(change plan.BGPChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change.Serial = c.told.set(change, c.isSet, time.Now())
	c.wanted.Apply(change)
	if !c.isSet {
		c.isSet = true
		change = wholeChange(c.wanted)
	}
	if c.link != nil {
		c.link.sendChange(change)
	}
}

// Sessions returns how the sessions are, by the name of the peer. A peer may be missing until its session begins.
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

// Blank tells whether ironlb-bgpd has said that it knows of no peer.
func (c *Client) Blank() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions != nil && len(c.sessions) == 0
}

// Run keeps a connection until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	retry := firstRetry
	for {
		err := c.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if c.lost(err) { // after one that said nothing the next one may do so, too
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

// connect returns when the connection has ended.
func (c *Client) connect(ctx context.Context) error {
	conn, err := dial(ctx, c.o.Socket, Speaker)
	if err != nil {
		return err
	}
	l := newLink(conn)
	c.mu.Lock()
	c.link = l
	if c.isSet {
		l.sendChange(wholeChange(c.wanted))
	}
	c.mu.Unlock()
	return l.run(ctx, c.receive)
}

// dial connects to ironlb-bgpd, which must be of the same user: it is told passwords.
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
		return nil, fmt.Errorf("talk to ironlb-bgpd on %s: %w", socket, err)
	}
	return c, nil
}

func (c *Client) receive(m Message) error {
	if m.Report == nil {
		return errors.New("ironlb-bgpd sent something that is no report")
	}
	c.mu.Lock()
	if c.sessions == nil {
		if !m.Report.Whole {
			c.mu.Unlock()
			return errors.New("the first report is not whole")
		}
		c.sessions = map[string]plan.Session{}
		c.o.Log.Info("connected to ironlb-bgpd", "socket", c.o.Socket)
	}
	applyReport(c.sessions, *m.Report)
	c.told.applied(m.Report.Applied, time.Now())
	c.away, c.why = time.Time{}, ""
	c.mu.Unlock()
	if m.Report.Whole || len(m.Report.Sessions) > 0 {
		c.o.Kick()
	}
	return nil
}

// lost notes that there is no connection, and tells whether there was one on which a report came. It is logged where there was one, and, once
// for each reason, where one is needed.
func (c *Client) lost(err error) (reported bool) {
	why := "ironlb-bgpd does not answer: " + text(err)
	c.mu.Lock()
	news := c.why != why
	needed := len(c.wanted.Peers) > 0
	reported = c.sessions != nil
	if c.away.IsZero() {
		c.away = time.Now()
	}
	c.link, c.sessions, c.why = nil, nil, why
	c.mu.Unlock()
	switch {
	case reported:
		c.o.Log.Warn("lost the connection to ironlb-bgpd; it is tried again", "socket", c.o.Socket, "reason", text(err))
	case news && needed:
		c.o.Log.Warn("no connection to ironlb-bgpd; it is tried again", "socket", c.o.Socket, "reason", text(err))
	}
	if news {
		c.o.Kick()
	}
	return reported
}

func text(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return "it closed the connection"
	}
	return err.Error()
}

// AskHealth asks the ironlb-bgpd of a socket how it is.
func AskHealth(ctx context.Context, socket string) (Health, error) {
	conn, err := dial(ctx, socket, Probe)
	if err != nil {
		return Health{}, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	m, err := conn.Receive()
	if err != nil {
		return Health{}, fmt.Errorf("ask ironlb-bgpd how it is: %w", errors.Join(err, context.Cause(ctx)))
	}
	if m.Health == nil {
		return Health{}, errors.New("ask ironlb-bgpd how it is: it answered something else")
	}
	return *m.Health, nil
}
