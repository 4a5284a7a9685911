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

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/unixsocket"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Pauses between attempts to connect. ironlb-bgpd may be starting again, and routers wait until it has received its
// configuration.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
	// refusedRetry is the pause after a refusal: two speakers must not replace each other repeatedly.
	refusedRetry = 5 * time.Second
)

// refused is the reason why ironlb-bgpd refused the connection.
type refused string

func (r refused) Error() string { return "refused: " + string(r) }

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
	o    ClientOptions
	wake chan struct{} // todo is set

	mu         sync.Mutex
	isSet      bool // wanted is set
	wanted     routes.BGP
	announcing announcing
	connected  bool
	todo       *request // not sent yet on this connection
	// sessions are the reported states; nil until the first status on this connection.
	sessions map[string]routes.Session
	// away is since when ironlb-bgpd is unreachable, and why is the reason; zero while it is reachable or not contacted
	// yet.
	away time.Time
	why  string
}

// NewClient returns a client that connects once it runs.
func NewClient(o ClientOptions) *Client {
	return &Client{o: o, wake: make(chan struct{}, 1), announcing: newAnnouncing(o.Metrics)}
}

// Set applies a change. The first change must be complete. Set never blocks, and keeps its argument.
func (c *Client) Set(change routes.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change.Serial = c.announcing.set(change, c.isSet, time.Now())
	c.wanted.Apply(change)
	if !c.connected {
		c.isSet = true
		return
	}
	switch {
	case !c.isSet:
		c.todo = &request{Change: fullChange(c.wanted)}
	case c.todo == nil:
		c.todo = &request{Change: merge(nil, change)}
	default:
		c.todo.Change = merge(c.todo.Change, change)
	}
	c.isSet = true
	trigger(c.wake)
}

// Sessions returns the states of the sessions, by the name of the peer. A peer may be missing until its session begins.
func (c *Client) Sessions() map[string]routes.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions != nil || c.away.IsZero() {
		return maps.Clone(c.sessions)
	}
	out := make(map[string]routes.Session, len(c.wanted.Peers))
	for name := range c.wanted.Peers {
		out[name] = routes.Session{State: routes.SessionIdle, Since: c.away, Reason: routes.NoBGPProcess, Message: c.why}
	}
	return out
}

// Run maintains a connection until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	retry := firstRetry
	for {
		err := c.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if c.lost(err) { // without a status, the next connection may fail in the same way
			retry = firstRetry
		}
		wait := retry
		if _, is := errors.AsType[refused](err); is {
			wait = refusedRetry
		}
		sleep(ctx, wait)
		if ctx.Err() != nil {
			return nil
		}
		retry = min(2*retry, lastRetry)
	}
}

// connect connects, and returns when the connection has ended.
func (c *Client) connect(ctx context.Context) error {
	conn, err := dial(ctx, c.o.Socket)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	c.mu.Lock()
	c.connected, c.todo = true, &request{Idle: true}
	if c.isSet {
		c.todo = &request{Change: fullChange(c.wanted)}
	}
	c.mu.Unlock()
	return exchange(conn, c.wake, c.next, func(s Status) error { return c.receive(conn, s) })
}

// dial connects to ironlb-bgpd, which must run as the same user, because it receives passwords. Its first status must
// come within firstLimit.
func dial(ctx context.Context, socket string) (*conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("connect to ironlb-bgpd: %w", err)
	}
	if err := errors.Join(unixsocket.SameUser(c.(*net.UnixConn)), c.SetReadDeadline(time.Now().Add(firstLimit))); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to ironlb-bgpd on %s: %w", socket, err)
	}
	return newConn(c), nil
}

// next returns what is to be sent.
func (c *Client) next() any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.todo == nil {
		return nil
	}
	r := c.todo
	c.todo = nil
	return r
}

func (c *Client) receive(conn *conn, s Status) error {
	if s.Refused != "" {
		return refused(s.Refused)
	}
	if s.Sessions == nil {
		s.Sessions = map[string]routes.Session{}
	}
	c.mu.Lock()
	first := c.sessions == nil
	changed := first || !maps.Equal(c.sessions, s.Sessions)
	c.sessions, c.away, c.why = s.Sessions, time.Time{}, ""
	c.announcing.applied(s.Applied, time.Now())
	c.mu.Unlock()
	if changed {
		c.o.Wake()
	}
	if !first {
		return nil
	}
	c.o.Log.Info("connected to ironlb-bgpd", "socket", c.o.Socket)
	return conn.SetReadDeadline(time.Time{})
}

// lost records that there is no connection, and reports whether a status was received on the last one. The loss is
// logged if there was one, or, once per reason, if a connection is needed.
func (c *Client) lost(err error) (reported bool) {
	why := "ironlb-bgpd does not answer: " + text(err)
	c.mu.Lock()
	changed := c.why != why
	needed := len(c.wanted.Peers) > 0
	reported = c.sessions != nil
	if c.away.IsZero() {
		c.away = time.Now()
	}
	c.connected, c.todo, c.sessions, c.why = false, nil, nil, why
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

// QueryHealth returns the status of the ironlb-bgpd at a socket.
func QueryHealth(ctx context.Context, socket string) (s Status, err error) {
	c, err := dial(ctx, socket)
	if err != nil {
		return s, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := c.receive(&s); err != nil {
		return s, fmt.Errorf("query the health of ironlb-bgpd: %w", errors.Join(err, context.Cause(ctx)))
	}
	return s, nil
}

// QueryMetrics returns the metrics of the ironlb-bgpd at a socket, in Prometheus' text format.
func QueryMetrics(ctx context.Context, socket string) (string, error) {
	c, err := dial(ctx, socket)
	if err != nil {
		return "", err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var status, answer Status
	err = c.send(request{Metrics: true})
	for _, line := range []*Status{&status, &answer} {
		if err == nil {
			err = c.receive(line)
		}
	}
	if err == nil && answer.Refused != "" {
		err = refused(answer.Refused)
	}
	if err != nil {
		return "", fmt.Errorf("query the metrics of ironlb-bgpd: %w", errors.Join(err, context.Cause(ctx)))
	}
	return answer.Metrics, nil
}
