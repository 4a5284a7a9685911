package ccm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/controller-manager/pkg/healthz"

	"github.com/ironlb/ironlb/ccm/loop"
)

// checked adds the loops' liveness to /healthz of the secure port.
type checked struct {
	name     string
	liveness *loop.Liveness
}

// Name returns the name of the controller.
func (c checked) Name() string { return c.name }

// HealthChecker is called by the app.
func (c checked) HealthChecker() healthz.UnnamedHealthChecker { return c.liveness }

// ready returns why the process is not ready. A replica that does not lead is ready while another one does.
func (c *Cloud) ready(ctx context.Context) error {
	switch {
	case c.services.Ledger.Adopted():
		return nil
	case c.leads.Load():
		return errors.New("leading, but recorded addresses are not adopted yet")
	case c.lease == nil:
		return errors.New("not started yet")
	}
	obj, err := c.lease.client.Get(ctx, c.lease.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading Lease %s: %w", c.lease.name, err)
	}
	s := obj.Spec
	if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || s.LeaseDurationSeconds == nil ||
		time.Since(s.RenewTime.Time) > time.Duration(*s.LeaseDurationSeconds)*time.Second {
		return errors.New("no replica leads")
	}
	return nil
}

// ServeProbes serves /livez and /readyz at the address until ctx ends. It returns once it listens.
func (c *Cloud) ServeProbes(ctx context.Context, address string) error {
	answer := func(check func(*http.Request) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := check(r); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = fmt.Fprintln(w, "ok")
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", answer(c.liveness.Check))
	mux.HandleFunc("GET /readyz", answer(func(r *http.Request) error { return c.ready(r.Context()) }))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serving probes (--probe-bind-address): %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			c.fatal(fmt.Errorf("serving probes: %w", err))
		}
	}()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}
