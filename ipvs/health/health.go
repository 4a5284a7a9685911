// Package health reports the health of this node's data plane and checks that of other nodes: the ports
// healthCheckNodePort, healthz and livez, checks of nodes for forwarding over NodePorts, and checks of new endpoints.
package health

import (
	"container/list"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// weightHeader contains the number of ready endpoints on the responding node.
const weightHeader = "X-Load-Balancing-Endpoint-Weight"

// NewServer returns a server that clients cannot block: they are load balancers, anywhere on the network. Use it with a
// listener that is [Bound].
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          log.New(discard{}, "", 0), // errors of clients do not belong in this node's log
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// answer writes body as JSON with status 200 or 503.
func answer(w http.ResponseWriter, ok bool, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails when the client has disconnected
}

// mostOfServer is the connection limit of a server by itself. Above it the oldest connection is closed.
const mostOfServer = 256

// Bound returns a listener with a connection limit: a new connection replaces the oldest. A client that opens many and
// leaves them open therefore blocks no other client, and uses a bounded part of this process.
func Bound(l net.Listener) net.Listener { return bound(l, newConnLimiter(mostOfServer)) }

func bound(l net.Listener, limiters ...*connLimiter) net.Listener { return &boundListener{l, limiters} }

type boundListener struct {
	net.Listener
	limiters []*connLimiter
}

func (l *boundListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &counted{Conn: conn}
	for _, in := range l.limiters {
		c.release = append(c.release, in.acquire(c))
	}
	return c, nil
}

// counted is a connection that is released from its connection limiters when it is closed.
type counted struct {
	net.Conn
	release []func()
}

func (c *counted) Close() error {
	for _, release := range c.release {
		release()
	}
	return c.Conn.Close()
}

// connLimiter is a connection limiter: the open connections of one or several listeners, the oldest first.
type connLimiter struct {
	most int

	mu    sync.Mutex
	conns list.List // of *counted
}

func newConnLimiter(most int) *connLimiter { return &connLimiter{most: most} }

// acquire adds a connection and closes the oldest one above the limit.
func (c *connLimiter) acquire(conn *counted) (release func()) {
	c.mu.Lock()
	at := c.conns.PushBack(conn)
	var oldest *counted
	if c.conns.Len() > c.most {
		oldest = c.conns.Remove(c.conns.Front()).(*counted)
	}
	c.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close() // its server detects that, and closes it as well
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns.Remove(at)
	}
}

// Endpoint is an HTTP endpoint that the process can do without.
type Endpoint struct {
	Name  string
	Field string // of the configuration, or the flag, containing Addr
	// Addr to listen on. An unspecified address means both families.
	Addr    netip.AddrPort
	Handler http.Handler
	// TLS makes it HTTPS; nil: HTTP.
	TLS *tls.Config
}

// listenAgain is the delay before Run retries to listen.
const listenAgain = 5 * time.Second

// Run serves until ctx ends. It retries to listen, and logs each cause of failure once.
func (e Endpoint) Run(ctx context.Context, log *slog.Logger) error {
	logged := ""
	for {
		err := e.serve(ctx, log)
		if ctx.Err() != nil {
			return nil
		}
		if text := err.Error(); text != logged {
			log.Error("cannot serve "+e.Name+"; trying again", "error", err)
			logged = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenAgain):
		}
	}
}

func (e Endpoint) serve(ctx context.Context, log *slog.Logger) error {
	socket, err := net.Listen("tcp", e.Addr.String())
	if err != nil {
		return fmt.Errorf("listen for %s on %v (end what else uses it, or choose another %s): %w", e.Name, e.Addr, e.Field, err)
	}
	server := NewServer(e.Handler)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	log.Info("serve "+e.Name, "address", socket.Addr().String())
	listener := Bound(socket)
	if e.TLS != nil {
		listener = tls.NewListener(listener, e.TLS)
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s on %v: %w", e.Name, e.Addr, err)
	}
	return nil
}
