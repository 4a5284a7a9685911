package speaker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/view"
)

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
