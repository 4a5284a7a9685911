package forwarding

import (
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// touchedUnreachable adds the Services whose plan may differ because a node became unreachable or reachable: those with
// an endpoint there, and those that forward through it.
func (p *Planner) touchedUnreachable(touched view.Touched, services map[pools.ServiceKey]struct{}) {
	for node := range touched.Unreachable {
		for key := range p.usersOf[node] {
			services[key] = struct{}{}
		}
	}
}

// indexNodes records which nodes a Service uses now, and its counts on unreachable ones.
func (p *Planner) indexNodes(key pools.ServiceKey, before, after servicePlan) {
	for node := range before.uses {
		if _, still := after.uses[node]; !still {
			p.usersOf.Remove(node, key)
		}
	}
	for node := range after.uses {
		if _, was := before.uses[node]; !was {
			p.usersOf.Add(node, key)
		}
	}
	for node, n := range before.unreachable {
		p.countMore(node, view.UnreachableEndpoints{LeftOut: -n.LeftOut, FailedOpen: -n.FailedOpen})
	}
	for node, n := range after.unreachable {
		p.countMore(node, n)
	}
}

func (p *Planner) countMore(node string, n view.UnreachableEndpoints) {
	sum := p.forwarding.Unreachable[node]
	sum.LeftOut, sum.FailedOpen = sum.LeftOut+n.LeftOut, sum.FailedOpen+n.FailedOpen
	incremental.Set(p.forwarding.Unreachable, node, sum, sum != view.UnreachableEndpoints{})
	p.changed.Unreachable[node] = struct{}{}
}
