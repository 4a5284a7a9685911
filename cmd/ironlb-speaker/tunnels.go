package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/direct"
	"github.com/ironlb/ironlb/ipvs/returnroute"
)

// tunnels are the first tier of directed virtual servers, opened on first use.
type tunnels struct {
	port uint16

	mu     sync.Mutex
	driver *direct.Driver
}

func (t *tunnels) open() (*direct.Driver, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.driver == nil {
		d, err := direct.New(direct.Config{Port: t.port})
		if err != nil {
			return nil, lasting(err)
		}
		t.driver = d
	}
	return t.driver, nil
}

// lasting makes the lack of a permission an error that lasts.
func lasting(err error) error {
	for _, cause := range []error{unix.EROFS, unix.EACCES, unix.EPERM} {
		if errors.Is(err, cause) && !errors.Is(err, ipvs.ErrNoTunnel) && !errors.Is(err, ipvs.ErrNoTunnelIPv6) {
			return fmt.Errorf("%w: %w", ipvs.ErrNoTunnel, err)
		}
	}
	return err
}

func (t *tunnels) close() {
	if t.driver != nil {
		t.driver.Close()
	}
}

func (t *tunnels) Probe(ctx context.Context, want ipvs.Direct) error {
	d, err := t.open()
	if err != nil {
		return err
	}
	return lasting(d.Probe(ctx, want))
}

func (t *tunnels) SetPods(pods ipvs.PodSources) error {
	d, err := t.open()
	if errors.Is(err, ipvs.ErrNoTunnel) {
		return nil // nothing is directed
	}
	if err != nil {
		return err
	}
	return d.SetPods(pods)
}

func (t *tunnels) Apply(ctx context.Context, want ipvs.Direct, changed []ipvs.Key) error {
	d, err := t.open()
	if errors.Is(err, ipvs.ErrNoTunnel) && len(want.Virtuals) == 0 {
		return nil // there can be nothing to remove
	}
	if err != nil {
		return err
	}
	return lasting(d.Apply(ctx, want, changed))
}

func (t *tunnels) Check(ctx context.Context) (bool, error) {
	d, err := t.open()
	if err != nil {
		return false, err
	}
	return d.Check(ctx)
}

func (t *tunnels) MTU() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.driver == nil {
		return 0
	}
	return t.driver.MTU()
}

func (t *tunnels) Remove(ctx context.Context) error {
	d, err := t.open()
	if errors.Is(err, ipvs.ErrNoTunnel) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.Remove(ctx)
}

// returnRoutes are the routes of answers. The driver is open only while there are any: its sockets would otherwise fill
// with notifications that nothing reads.
type returnRoutes struct {
	mu     sync.Mutex
	driver *returnroute.Driver
}

func (r *returnRoutes) open() (*returnroute.Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.driver == nil {
		d, err := returnroute.New(direct.Device1, direct.Device2)
		if err != nil {
			return nil, err
		}
		r.driver = d
	}
	return r.driver, nil
}

func (r *returnRoutes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.driver != nil {
		r.driver.Close()
		r.driver = nil
	}
}

func (r *returnRoutes) Apply(ctx context.Context, want []ipvs.ReturnRoute) ([]ipvs.ReturnRoute, error) {
	d, err := r.open()
	if errors.Is(err, exec.ErrNotFound) && len(want) == 0 {
		return nil, nil // there can be nothing to remove
	}
	if err != nil {
		return nil, err
	}
	done, err := d.Apply(ctx, want)
	if err == nil && len(want) == 0 {
		r.close()
	}
	return done, err
}

func (r *returnRoutes) Check(ctx context.Context) (bool, error) {
	d, err := r.open()
	if err != nil {
		return false, err
	}
	return d.Check(ctx)
}

func (r *returnRoutes) Remove(ctx context.Context) error {
	_, err := r.Apply(ctx, nil)
	return err
}
