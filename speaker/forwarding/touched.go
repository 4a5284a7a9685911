package forwarding

import (
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// touchedServices returns the Services whose plan may differ.
func (p *Planner) touchedServices(v *view.View, touched view.Touched, now time.Time) map[pools.ServiceKey]struct{} {
	out := map[pools.ServiceKey]struct{}{}
	p.touchedDirect(v, touched, out)
	if _, own := touched.Nodes[p.node]; own || touched.Host || touched.All {
		for key := range p.services {
			out[key] = struct{}{}
		}
		for key := range v.Services {
			out[key] = struct{}{}
		}
		return out
	}
	for key := range touched.Services {
		out[key] = struct{}{}
	}
	if len(touched.Nodes) > 0 {
		for key := range p.watchers {
			out[key] = struct{}{}
		}
	}
	p.touchedUnreachable(touched, out)
	for check := range touched.Checks {
		for key := range p.checkers[check] {
			out[key] = struct{}{}
		}
	}
	for key, at := range p.wakes {
		if !at.After(now) {
			out[key] = struct{}{}
		}
	}
	return out
}
