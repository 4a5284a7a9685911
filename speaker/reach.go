package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

// reachMetrics are the metrics of endpoints on unreachable nodes.
type reachMetrics struct {
	nodes, unwitnessed, leftOut, failedOpen, cutOff prometheus.Gauge
	programmed                                      prometheus.Histogram
}

func newReachMetrics(reg prometheus.Registerer) reachMetrics {
	const ns, sub = "ironlb", "endpoint_unreachable"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	m := reachMetrics{
		nodes:       gauge("nodes", "Nodes whose endpoints take no new connections from this node, because it cannot reach them."),
		unwitnessed: gauge("unwitnessed_nodes", "Nodes whose kernel answers no question: should they die, Kubernetes alone finds out."),
		leftOut:     gauge("endpoints", "Endpoints on these nodes that take no new connections, over all ports of Services."),
		failedOpen:  gauge("endpoints_failed_open", "Endpoints on these nodes that take connections because no other endpoint is left."),
		cutOff:      gauge("cut_off", "1 while this node may be cut off itself, so that nothing changes."),
		programmed: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "programmed_seconds",
			Help:    "From the moment that a node was found unreachable until this node was programmed with that.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5},
		}),
	}
	reg.MustRegister(m.nodes, m.unwitnessed, m.leftOut, m.failedOpen, m.cutOff, m.programmed)
	return m
}

func (m *reachMetrics) report(r view.Reachability, leftOut, failedOpen int) {
	m.nodes.Set(float64(len(r.Unreachable)))
	m.unwitnessed.Set(float64(len(r.Unwitnessed)))
	m.leftOut.Set(float64(leftOut))
	m.failedOpen.Set(float64(failedOpen))
	m.cutOff.Set(0)
	if r.CutOff {
		m.cutOff.Set(1)
	}
}
