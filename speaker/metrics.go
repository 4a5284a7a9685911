package speaker

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Metrics are the metrics of the loop.
type Metrics struct {
	duration  prometheus.Histogram
	program   prometheus.Histogram
	errors    prometheus.Counter
	changes   *prometheus.CounterVec
	servers   prometheus.Gauge
	reals     prometheus.Gauge
	announced prometheus.Gauge
	vips      *prometheus.GaugeVec
	services  *prometheus.GaugeVec
	refused   *prometheus.GaugeVec
	healthy   prometheus.Gauge
	moves     *prometheus.CounterVec
	// completion is the duration of failovers.
	completion prometheus.Histogram
	bgp        bgpMetrics
	reach      reachMetrics
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
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "sync_duration_seconds",
			Help: "How long a round took that observed, planned and applied.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}),
		program: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "program_duration_seconds",
			Help: "From the moment that a round took in what is new until the node was programmed with it; of rounds that changed the node.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "sync_errors_total",
			Help: "Rounds that ended with an error."}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "changes_total",
			Help: "Changes applied to the node, by what was done."}, []string{"action"}),
		servers:   gauge("virtual_servers", "Virtual servers that the node holds for us."),
		reals:     gauge("real_servers", "Real servers of these virtual servers."),
		announced: gauge("announced_addresses", "Addresses that this node answers for."),
		vips:      byReason("vips", "VirtualIPs by why this node answers for them or not."),
		services:  byReason("services", "Services by what became of them on this node."),
		refused:   byReason("refused_addresses", "Addresses of Services that this node does not use, by the rule that keeps them from every Service."),
		healthy:   gauge("healthy", "1 while the node is as planned."),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: "failover", Name: "moves_total",
			Help: "VirtualIPs that came to this node or left it, by reason."}, []string{"reason"}),
		completion: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: "failover", Name: "completion_seconds",
			Help:    "From the moment that nobody was known to answer for a VirtualIP until this node did.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5}}),
	}
	reg.MustRegister(m.duration, m.program, m.errors, m.changes, m.servers, m.reals, m.announced, m.vips, m.services, m.refused, m.healthy, m.moves, m.completion)
	m.bgp, m.reach = newBGPMetrics(reg), newReachMetrics(reg)
	return m
}

func (m *Metrics) round(err error, took time.Duration) {
	m.duration.Observe(took.Seconds())
	m.healthy.Set(0)
	switch {
	case err == nil:
		m.healthy.Set(1)
	case !errors.Is(err, errNotSynced):
		m.errors.Inc()
	}
}

func (m *Metrics) change(action string) { m.changes.WithLabelValues(action).Inc() }

func (m *Metrics) table(servers, reals int) {
	m.servers.Set(float64(servers))
	m.reals.Set(float64(reals))
}

// tally counts objects by reason.
type tally[K comparable] struct {
	of     map[K]plan.Reason
	counts map[plan.Reason]int
	gauge  *prometheus.GaugeVec
}

func newTally[K comparable](gauge *prometheus.GaugeVec) *tally[K] {
	return &tally[K]{of: map[K]plan.Reason{}, counts: map[plan.Reason]int{}, gauge: gauge}
}

// set records the reason for one object, or its deletion.
func (t *tally[K]) set(key K, reason plan.Reason, exists bool) {
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

func (t *tally[K]) count(reason plan.Reason, n int) {
	t.counts[reason] += n
	if t.counts[reason] == 0 {
		delete(t.counts, reason)
		t.gauge.DeleteLabelValues(string(reason))
		return
	}
	t.gauge.WithLabelValues(string(reason)).Set(float64(t.counts[reason]))
}
