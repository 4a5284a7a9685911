package plan

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// unreachable reports whether an endpoint is on an unreachable node, and since when. An endpoint on this node, or
// without a node, never is.
func (w *planning) unreachable(e *view.Endpoint) (since time.Time, is bool) {
	if e.Node == "" || w.isLocal(e) {
		return time.Time{}, false
	}
	since, is = w.view.Unreachable[e.Node]
	return since, is
}

// reachable returns the candidates that are not on an unreachable node, and the same map if none is.
func (w *planning) reachable(from candidates) candidates {
	if len(w.view.Unreachable) == 0 {
		return from
	}
	out := map[netip.AddrPort]struct{}{}
	for at, e := range from {
		if _, is := w.unreachable(e); is {
			out[at] = struct{}{}
		}
	}
	return minus(from, out)
}

// resetAt returns when to end connections to a node that is unreachable since then, zero for never.
func (o Options) resetAt(since time.Time) time.Time {
	if o.ResetAfter == 0 || since.IsZero() {
		return time.Time{}
	}
	return since.Add(o.ResetAfter)
}

// countUnreachable counts the endpoints of a list on unreachable nodes.
func (w *planning) countUnreachable(l list, from candidates) {
	if len(w.view.Unreachable) == 0 {
		return
	}
	anyReady := false
	for _, e := range from {
		anyReady = anyReady || e.Ready
	}
	for at, e := range from {
		if _, is := w.unreachable(e); !is || !e.Ready && (anyReady || !e.Usable()) {
			continue
		}
		if w.out.unreachable == nil {
			w.out.unreachable = map[string]view.UnreachableEndpoints{}
		}
		n := w.out.unreachable[e.Node]
		switch {
		case !l.failedOpen:
			n.LeftOut++
		case l.servers[at].Weight > 0:
			n.FailedOpen++
		}
		w.out.unreachable[e.Node] = n
	}
}

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
	sum := p.desired.Unreachable[node]
	sum.LeftOut, sum.FailedOpen = sum.LeftOut+n.LeftOut, sum.FailedOpen+n.FailedOpen
	incremental.Set(p.desired.Unreachable, node, sum, sum != view.UnreachableEndpoints{})
	p.changed.Unreachable[node] = struct{}{}
}

// stays reports whether a node that is unreachable since then is still a real server of weight 0, and has the Service
// planned again when that ends. Only TCP has connections to keep.
func (w *planning) stays(protocol ipvs.Protocol, since time.Time) bool {
	until := w.options.resetAt(since)
	if protocol != ipvs.TCP || !until.IsZero() && !w.now.Before(until) {
		return false
	}
	w.wake(until)
	return true
}
