package status

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/view"
)

// Metrics are the metrics of outcome.
type Metrics struct {
	announced                       prometheus.Gauge
	vips, services, refused, routed *prometheus.GaugeVec
	moves                           *prometheus.CounterVec
	// completion is the duration of failovers.
	completion prometheus.Histogram
}

// NewMetrics returns registered metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	const ns, sub = "ironlb", "speaker"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	byReason := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, []string{"reason"})
	}
	m := &Metrics{
		announced: gauge("announced_addresses", "Addresses announced by this node."),
		vips:      byReason("vips", "VirtualIPs by reason on this node."),
		services:  byReason("services", "Services by outcome on this node."),
		refused:   byReason("refused_addresses", "Refused addresses of Services, by rule."),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: "failover", Name: "moves_total",
			Help: "Moves of VirtualIPs to and from this node, by reason."}, []string{"reason"}),
		completion: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: "failover", Name: "completion_seconds",
			Help:    "Time from the loss of the owner of a VirtualIP to its announcement by this node.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5}}),
		routed: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: "bgp", Name: "addresses",
			Help: "Addresses covered by a BGPAdvertisement, by outcome on this node."}, []string{"reason"}),
	}
	reg.MustRegister(m.announced, m.vips, m.services, m.refused, m.routed, m.moves, m.completion)
	return m
}

// tally counts objects by reason.
type tally[K comparable] struct {
	of     map[K]view.Reason
	counts map[view.Reason]int
	gauge  *prometheus.GaugeVec
}

func newTally[K comparable](gauge *prometheus.GaugeVec) *tally[K] {
	return &tally[K]{of: map[K]view.Reason{}, counts: map[view.Reason]int{}, gauge: gauge}
}

// set records the reason for one object, or its deletion.
func (t *tally[K]) set(key K, reason view.Reason, exists bool) {
	before, was := t.of[key]
	if was == exists && before == reason {
		return
	}
	if was {
		t.count(before, -1)
		delete(t.of, key)
	}
	if exists {
		t.count(reason, 1)
		t.of[key] = reason
	}
}

func (t *tally[K]) count(reason view.Reason, n int) {
	t.counts[reason] += n
	if t.counts[reason] == 0 {
		delete(t.counts, reason)
		t.gauge.DeleteLabelValues(string(reason))
		return
	}
	t.gauge.WithLabelValues(string(reason)).Set(float64(t.counts[reason]))
}
