package reach

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Metrics count probes, answers, and nodes that became unreachable.
type Metrics struct {
	questions, answers *prometheus.CounterVec
	unreachable        prometheus.Counter
}

// NewMetrics returns the metrics, registered with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		questions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_questions_total",
			Help: "Questions to the kernels of other nodes and to gateways, by witness: ICMPEcho or Neighbor (ARP, neighbor discovery).",
		}, []string{"witness"}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_answers_total",
			Help: "Answers to these questions, by witness.",
		}, []string{"witness"}),
		unreachable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_nodes_total",
			Help: "How often a node became unreachable.",
		}),
	}
	for _, w := range []plan.Witness{plan.WitnessEcho, plan.WitnessNeighbor} {
		m.questions.WithLabelValues(string(w))
		m.answers.WithLabelValues(string(w))
	}
	r.MustRegister(m.questions, m.answers, m.unreachable)
	return m
}
