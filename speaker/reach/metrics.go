package reach

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/view"
)

// Metrics count probes, answers, and nodes that became unreachable.
type Metrics struct {
	probes, answers *prometheus.CounterVec
	unreachable     prometheus.Counter
}

// NewMetrics returns the metrics, registered with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_probes_total",
			Help: "Probes of the kernels of other nodes and of gateways, by witness: ICMPEcho or Neighbor (ARP, neighbor discovery).",
		}, []string{"witness"}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_answers_total",
			Help: "Answers to these probes, by witness.",
		}, []string{"witness"}),
		unreachable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_nodes_total",
			Help: "How often a node became unreachable.",
		}),
	}
	for _, w := range []view.Witness{view.WitnessEcho, view.WitnessNeighbor} {
		m.probes.WithLabelValues(string(w))
		m.answers.WithLabelValues(string(w))
	}
	r.MustRegister(m.probes, m.answers, m.unreachable)
	return m
}
