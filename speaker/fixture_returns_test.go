package speaker

import (
	"context"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// fixtureReturnRoutes are the return routes of the node. harmed is set if they may differ from the last Apply of this
// process.
type fixtureReturnRoutes struct {
	have    []ipvs.ReturnRoute
	harmed  bool
	applied int
}

type fixtureReturns struct{ f *fixture }

func (r fixtureReturns) Apply(_ context.Context, want []ipvs.ReturnRoute) ([]ipvs.ReturnRoute, error) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.f.returns.applied++
	if !slices.EqualFunc(r.f.returns.have, want, ipvs.ReturnRoute.Equal) {
		if err := r.f.change("return routes"); err != nil {
			r.f.returns.harmed = true
			return r.f.returns.have, err
		}
	}
	r.f.returns.have, r.f.returns.harmed = slices.Clone(want), false
	return slices.Clone(want), nil
}

func (r fixtureReturns) Check(context.Context) (bool, error) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return !r.f.returns.harmed, nil
}

func (r fixtureReturns) Remove(context.Context) error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.f.returns.have = nil
	return r.f.change("return routes")
}
