package main

import (
	"context"
	"errors"
	"os/exec"
	"sync"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/direct"
	"github.com/ironlb/ironlb/ipvs/returnroute"
)

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
