// Package echo is the server and the client of "kubectl ironlb connectivity test": ironlb-speaker runs them in its Pods.
package echo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/netutil"
)

// Limit is the time limit for one request.
const Limit = 3 * time.Second

// Paths of the server.
const (
	// Hostname gives the name of the server's Pod.
	Hostname = "/hostname"
	// ClientIP gives the address and port of the client, as the server sees them.
	ClientIP = "/clientip"
)

// handler answers requests for the paths, and for nothing else.
func handler(hostname string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Hostname, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, hostname) })
	mux.HandleFunc("GET "+ClientIP, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RemoteAddr) })
	return mux
}

// mostConnections is how many clients the server has at a time: whoever reaches the Services can open more.
const mostConnections = 256

// Serve answers at a port of all addresses until the context ends.
func Serve(ctx context.Context, port uint16) error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the hostname: %w", err)
	}
	l, err := net.Listen("tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		return err
	}
	return serve(ctx, l, hostname)
}

func serve(ctx context.Context, l net.Listener, hostname string) error {
	s := http.Server{Handler: handler(hostname), ReadTimeout: Limit, WriteTimeout: Limit, IdleTimeout: Limit, MaxHeaderBytes: 4 << 10}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(netutil.LimitListener(l, mostConnections)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Transfer is the result of one request.
type Transfer struct {
	Body  string        `json:"body,omitempty"`
	OK    bool          `json:"ok"`
	Took  time.Duration `json:"took"`
	Error string        `json:"error,omitempty"`
}

// Request makes one request on a new connection, without a proxy.
func Request(ctx context.Context, url string) Transfer {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, Limit, fmt.Errorf("no answer within %s", Limit))
	defer cancel()
	body, status, err := get(ctx, url)
	t := Transfer{Body: body, OK: err == nil && status == http.StatusOK, Took: time.Since(began)}
	switch {
	case err != nil && ctx.Err() != nil:
		t.Error = context.Cause(ctx).Error()
	case err != nil:
		t.Error = err.Error()
	case !t.OK:
		t.Error = fmt.Sprintf("HTTP status %d", status)
	}
	return t
}

func get(ctx context.Context, url string) (body string, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", 0, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		return "", 0, err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	return string(data), answer.StatusCode, err
}

// Requests makes n requests, one after the other, and passes each result to done until that returns an error or the
// context ends. perSecond limits their rate, 0: no limit. A request that the end of the context interrupts does not count.
func Requests(ctx context.Context, n, perSecond int, request func(context.Context) Transfer, done func(Transfer) error) error {
	interval := time.Duration(0)
	if perSecond > 0 {
		interval = time.Second / time.Duration(perSecond)
	}
	for range n {
		next := time.After(interval)
		t := request(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := done(t); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
	}
	return nil
}
