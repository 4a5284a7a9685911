package health_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/test/eventually"
)

// A client that opens connections and leaves them open uses a bounded number, and every other client is answered.
func TestConnectionsAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		serve func(n *node) // at 192.0.2.1:30100
		most  int
	}{
		"health check port": {func(n *node) { n.set(t, wanted{web: {Number: 30100, Endpoints: 1}}) }, 64},
		"healthz": {func(n *node) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- n.Do(func() error {
					return health.NewHealthz().Run(ctx, slog.New(slog.DiscardHandler), netip.MustParseAddrPort("192.0.2.1:30100"))
				})
			}()
			t.Cleanup(func() { cancel(); <-done })
		}, 256},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			test.serve(n)
			var idle []net.Conn
			defer func() {
				for _, conn := range idle {
					conn.Close()
				}
			}()
			for range test.most + 20 {
				conn := n.dialUntil(t, "192.0.2.1:30100")
				idle = append(idle, conn)
				if _, _, err := askOn(conn, bufio.NewReader(conn), "GET", "/livez"); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := n.ask("GET", "192.0.2.1:30100", "/livez"); err != nil {
				t.Errorf("one more: %v", err)
			}
			// That connection used a place, too. The oldest are closed, the newest are not.
			for i, conn := range idle {
				want := i >= 21
				if i == 20 {
					continue // whether and when the request's connection is closed depends on the server
				}
				if got := open(t, conn, !want); got != want {
					t.Fatalf("connection %d of %d is open: %v", i, len(idle), got)
				}
			}
		})
	}
}

// dialUntil connects as soon as a listener exists.
func (n *node) dialUntil(t *testing.T, at string) (conn net.Conn) {
	t.Helper()
	eventually.Nil(t, 10*time.Second, "a listener at "+at, func(context.Context) (err error) {
		conn, err = n.Dial("tcp", "", at)
		return err
	})
	return conn
}

// open reports whether the peer has kept a connection open; if a close is expected, it waits for that.
func open(t *testing.T, conn net.Conn, ended bool) bool {
	t.Helper()
	wait := time.Duration(0)
	if ended {
		wait = 30 * time.Second // less than the server's own idle timeout
	}
	_ = conn.SetReadDeadline(time.Now().Add(wait + time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// The limits for slow clients and large requests are those of every server here.
func TestServerIsBounded(t *testing.T) {
	s := health.NewServer(http.NotFoundHandler())
	for name, limit := range map[string]time.Duration{
		"headers": s.ReadHeaderTimeout, "reading": s.ReadTimeout, "writing": s.WriteTimeout, "idling": s.IdleTimeout,
	} {
		if limit <= 0 || limit > time.Minute {
			t.Errorf("%s may take %v", name, limit)
		}
	}
	n := newNode(t)
	n.set(t, wanted{web: {Number: 30100, Endpoints: 1}})
	conn := n.dialUntil(t, "192.0.2.1:30100")
	defer conn.Close()
	_, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: node\r\nLong: %s\r\n\r\n", strings.Repeat("x", 16<<10))
	if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a request of 16 KiB of headers: %v", response)
	}
}
