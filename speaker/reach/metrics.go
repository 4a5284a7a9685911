package reach

import "github.com/prometheus/client_golang/prometheus"

// metrics count questions and decisions.
type metrics struct {
	questions, answers *prometheus.CounterVec
	unreachable        prometheus.Counter
}

func (w Witness) label() string {
	if w == Neighbor {
		return "neighbor"
	}
	return "echo"
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		questions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ironlb_endpoint_unreachable_questions_total",
			Help: "Questions to the kernels of other nodes and to gateways, by witness: echo (ICMP) or neighbor (ARP, neighbor discovery).",
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
	for _, w := range []Witness{Echo, Neighbor} {
		m.questions.WithLabelValues(w.label())
		m.answers.WithLabelValues(w.label())
	}
	r.MustRegister(m.questions, m.answers, m.unreachable)
	return m
}
