package advertise

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Metrics are the metrics of routes and sessions. Without BGP they have no values.
type Metrics struct {
	up, prefixes, bfd *prometheus.GaugeVec
	// problem has a value by reason for a session that is not established.
	problem *prometheus.GaugeVec
	changes *prometheus.CounterVec
}

// NewMetrics returns registered metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "bgp", Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		up:       gauge("session_up", "1 while the BGP session with the peer is established.", "peer"),
		prefixes: gauge("prefixes", "Prefixes that are announced to the peer; 0 while the session is not established.", "peer"),
		bfd:      gauge("bfd_up", "1 while the BFD session with the peer is up; none without BFD.", "peer"),
		problem: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "bgp", Name: "session_problem",
			Help: "1 for the reason for which the BGP session with the peer is not established."}, []string{"peer", "reason"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ironlb", Subsystem: "bgp", Name: "route_changes_total",
			Help: "Routes that were announced, changed and withdrawn, by reason."}, []string{"action", "reason"}),
	}
	reg.MustRegister(m.up, m.prefixes, m.bfd, m.problem, m.changes)
	return m
}

func (m *Metrics) session(peer string, s routes.Session) {
	m.up.WithLabelValues(peer).Set(oneIf(s.State == routes.SessionEstablished))
	m.prefixes.WithLabelValues(peer).Set(float64(s.Prefixes))
	m.problem.DeletePartialMatch(prometheus.Labels{"peer": peer})
	if s.State != routes.SessionEstablished && s.Reason != "" {
		m.problem.WithLabelValues(peer, string(s.Reason)).Set(1)
	}
	if s.BFD == "" {
		m.bfd.DeleteLabelValues(peer)
		return
	}
	m.bfd.WithLabelValues(peer).Set(oneIf(s.BFD == view.BFDUp))
}

func (m *Metrics) remove(peer string) {
	for _, vec := range []*prometheus.GaugeVec{m.up, m.prefixes, m.bfd} {
		vec.DeleteLabelValues(peer)
	}
	m.problem.DeletePartialMatch(prometheus.Labels{"peer": peer})
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
