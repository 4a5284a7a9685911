package forwarding

import (
	"slices"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// replan plans one Service again and updates the desired state.
func (p *Planner) replan(v *view.View, key pools.ServiceKey, now time.Time) {
	before := p.services[key]
	svc, exists := v.Services[key]
	var after servicePlan
	if exists {
		after = p.planService(v, key, now)
		p.services[key] = after
	} else {
		delete(p.services, key)
	}
	p.changed.Services[key] = struct{}{}
	for k := range before.virtuals {
		if _, still := after.virtuals[k]; !still {
			p.disclaim(k, key)
		}
	}
	for k, virtual := range after.virtuals {
		after.virtuals[k] = p.claim(k, claim{service: key, created: svc.Created, virtual: virtual})
	}
	incremental.Set(p.forwarding.Refused, key, after.refused, len(after.refused) > 0)
	incremental.Set(p.forwarding.Fallbacks, key, after.fallback, after.fallback != view.Fallback{})
	incremental.Set(p.directs, key, struct{}{}, svc.Forwarding == view.Direct)
	p.admission.record(key, svc.Addresses)
	incremental.Set(p.wakes, key, after.wake, !after.wake.IsZero())
	incremental.Set(p.watchers, key, struct{}{}, after.nodes)
	p.count(after.elements, before.elements)
	p.planChecks(key, before.checks, after.checks)
	p.indexNodes(key, before, after)
	if after.health != nil {
		p.forwarding.HealthPorts[key] = *after.health
	} else {
		delete(p.forwarding.HealthPorts, key)
	}
}

func (p *Planner) planChecks(key pools.ServiceKey, before, after []view.Check) {
	for _, c := range before {
		p.checkers.Remove(c, key)
	}
	for _, c := range after {
		p.checkers.Add(c, key)
	}
	for _, c := range append(slices.Clone(before), after...) {
		p.changed.Checks[c] = struct{}{}
		incremental.Set(p.forwarding.Checks, c, struct{}{}, len(p.checkers[c]) > 0)
	}
}
