package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// reachState is the loop's state about unreachable nodes.
type reachState struct {
	now view.Reachability
	// fresh holds when nodes became unreachable that are not programmed as such yet. died is set if this reconcile
	// found any.
	fresh []time.Time
	died  bool
}

// observeReach adds the unreachable nodes to the View, and sets the nodes and gateways to probe.
func (s *Speaker) observeReach(v *view.View, touched *view.Touched) {
	if s.cfg.Reach == nil {
		return
	}
	first := s.desired == nil
	if len(touched.Nodes) > 0 || first {
		nodes := make(map[string][]netip.Addr, len(v.Nodes))
		for name, node := range v.Nodes {
			if name != s.cfg.NodeName {
				nodes[name] = node.Addresses
			}
		}
		s.cfg.Reach.SetNodes(nodes)
	}
	if touched.Gateways || len(touched.Nodes) > 0 || touched.All || first {
		s.cfg.Reach.SetGateways(gatewaysOf(v))
	}
	r := &s.reach
	r.now, r.died = s.cfg.Reach.State(), false
	unreachable := make(map[string]time.Time, len(r.now.Unreachable))
	touched.Unreachable = map[string]struct{}{}
	for name, u := range r.now.Unreachable {
		unreachable[name] = u.Since
		before, was := v.Unreachable[name]
		if !was {
			r.fresh, r.died = append(r.fresh, u.Since), true
		}
		if !was || !before.Equal(u.Since) {
			touched.Unreachable[name] = struct{}{}
		}
	}
	for name := range v.Unreachable {
		if !has(unreachable, name) {
			touched.Unreachable[name] = struct{}{}
		}
	}
	if len(touched.Unreachable) > 0 {
		v.Unreachable = unreachable
	}
}

// gatewaysOf returns the gateways of this node, except addresses of nodes: they prove nothing about the network beyond.
func gatewaysOf(v *view.View) []netip.Addr {
	nodes := map[netip.Addr]struct{}{}
	for _, n := range v.Nodes {
		for _, a := range slices.Concat(n.Addresses, n.Reached) {
			nodes[a] = struct{}{}
		}
	}
	return slices.DeleteFunc(slices.SortedFunc(maps.Keys(v.Gateways), netip.Addr.Compare), func(a netip.Addr) bool {
		return has(nodes, a) || has(v.Host, a)
	})
}

// measureReach records how long it took to program unreachable nodes, once that is complete.
func (s *Speaker) measureReach() {
	at, ok := s.dataplane.Programmed()
	if !ok {
		return
	}
	for _, since := range s.reach.fresh {
		s.cfg.Metrics.reach.programmed.Observe(at.Sub(since).Seconds())
	}
	s.reach.fresh = nil
}

// reportReach exports the number of endpoints left out.
func (s *Speaker) reportReach() {
	leftOut, failedOpen := 0, 0
	for _, n := range s.desired.Unreachable {
		leftOut, failedOpen = leftOut+n.LeftOut, failedOpen+n.FailedOpen
	}
	s.cfg.Metrics.reach.report(s.reach.now, leftOut, failedOpen)
}
