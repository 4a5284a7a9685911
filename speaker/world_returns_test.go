package speaker

import (
	"context"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// worldReturnRoutes are the return routes of the node. harmed is set if they may differ from the last Apply of this
// process.
type worldReturnRoutes struct {
	have    []ipvs.ReturnRoute
	harmed  bool
	applied int
}

type worldReturns struct{ w *world }

func (r worldReturns) Apply(_ context.Context, want []ipvs.ReturnRoute) ([]ipvs.ReturnRoute, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.returns.applied++
	if !slices.EqualFunc(r.w.returns.have, want, ipvs.ReturnRoute.Equal) {
		if err := r.w.change("return routes"); err != nil {
			r.w.returns.harmed = true
			return r.w.returns.have, err
		}
	}
	r.w.returns.have, r.w.returns.harmed = slices.Clone(want), false
	return slices.Clone(want), nil
}

func (r worldReturns) Check(context.Context) (bool, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return !r.w.returns.harmed, nil
}

func (r worldReturns) Remove(context.Context) error {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.returns.have = nil
	return r.w.change("return routes")
}
