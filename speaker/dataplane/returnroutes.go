package dataplane

import (
	"context"
	"log/slog"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// ReturnRoutes are the routes of answers. IronLB owns those with its mark.
type ReturnRoutes interface {
	// Apply makes the node have these routes and no others of ours, also of an earlier process, and returns those in
	// effect. It continues after an error.
	Apply(ctx context.Context, want []ipvs.ReturnRoute) (done []ipvs.ReturnRoute, err error)
	// Check reports whether everything is as the last Apply left it.
	Check(ctx context.Context) (intact bool, err error)
	// Remove removes everything that is ours.
	Remove(ctx context.Context) error
}

// returns is the state of the return routes.
type returns struct {
	// have are the routes in effect. begun is set once a call of Apply has removed what an earlier process left, or is
	// pending.
	have  []ipvs.ReturnRoute
	begun bool
}

// checkReturns adds the return routes to the work if another program changed them. Failed ones are pending already.
func (d *DataPlane) checkReturns(ctx context.Context, todo *Work) {
	if d.drivers.ReturnRoutes == nil || len(d.returns.have) == 0 || d.failed.Returns {
		return
	}
	intact, err := d.drivers.ReturnRoutes.Check(ctx)
	d.fail(err)
	todo.Returns = todo.Returns || err == nil && !intact
}

// setReturns makes the node have the return routes of the plan. It precedes the addresses. A failure stays pending.
func (d *DataPlane) setReturns(ctx context.Context, todo *Work) {
	if d.drivers.ReturnRoutes == nil || d.returns.begun && !todo.Returns {
		return
	}
	before := d.returns.have
	done, err := d.drivers.ReturnRoutes.Apply(ctx, d.in.Desired.ReturnRoutes)
	d.returns.have, d.returns.begun = done, true
	if err != nil {
		d.fail(err)
		d.failed.Returns = true
	}
	same := func(r ipvs.ReturnRoute) func(ipvs.ReturnRoute) bool {
		return func(s ipvs.ReturnRoute) bool { return s.Equal(r) }
	}
	for _, r := range done {
		if !slices.ContainsFunc(before, same(r)) {
			d.cfg.Record(slog.LevelInfo, "set return route", "gateway", r.Gateway, "interface", r.Interface, "addresses", r.Prefixes, "reason", d.in.Reason)
		}
	}
	for _, r := range before {
		if !slices.ContainsFunc(done, same(r)) {
			d.cfg.Record(slog.LevelInfo, "delete return route", "gateway", r.Gateway, "interface", r.Interface, "addresses", r.Prefixes, "reason", d.in.Reason)
		}
	}
}

// ReturnRoutes returns the return routes of the pools, and whether each is in effect.
func (d *DataPlane) ReturnRoutes(planned []view.PoolReturn) []view.PoolReturn {
	out := slices.Clone(planned)
	for i := range out {
		out[i].InEffect = slices.ContainsFunc(d.returns.have, func(r ipvs.ReturnRoute) bool {
			return r.Gateway == out[i].Gateway && r.Interface == out[i].Interface
		})
	}
	return out
}
