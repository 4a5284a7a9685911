package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"
)

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
