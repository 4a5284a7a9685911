package speaker

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/advertise"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/status"
)

// Metrics are the metrics of the loop.
type Metrics struct {
	duration prometheus.Histogram
	program  prometheus.Histogram
	network  prometheus.Histogram
	errors   prometheus.Counter
	drains   prometheus.Counter
	changes  *prometheus.CounterVec
	servers  prometheus.Gauge
	reals    prometheus.Gauge
	directed prometheus.Gauge
	fallback prometheus.Gauge
	differ   prometheus.Gauge
	healthy  prometheus.Gauge
	status   *status.Metrics
	bgp      *advertise.Metrics
	reach    reachMetrics
}

// NewMetrics returns registered metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	const ns, sub = "ironlb", "speaker"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	m := &Metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "sync_duration_seconds",
			Help: "Duration of a reconcile.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}),
		program: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "program_duration_seconds",
			Help: "Time from the observation of a change to its programming, of reconciles that changed the node.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}),
		network: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "network_programming_duration_seconds",
			Help: "In-cluster network programming latency: from the change of a Pod or Service to the programming of its endpoints.", Buckets: networkBuckets()}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "sync_errors_total",
			Help: "Reconciles that failed."}),
		drains: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "drain_count_errors_total",
			Help: "Failed counts of the connections of draining endpoints."}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "changes_total",
			Help: "Changes applied to the node, by action."}, []string{"action"}),
		servers: gauge("virtual_servers", "Virtual servers of IronLB on the node."),
		reals:   gauge("real_servers", "Real servers of these virtual servers."),
		healthy: gauge("healthy", "1 while the node matches the plan."),
		directed: gauge("directed_virtual_servers", "Virtual servers that the node forwards directly, through tunnels to the nodes of the "+
			"endpoints."),
		differ:   gauge("direct_slots_differ", "Nodes that have directed connections to other nodes than this one for 10 s or more."),
		fallback: gauge("direct_fallbacks", "Services that are to be forwarded directly and are forwarded to endpoints."),
	}
	reg.MustRegister(m.duration, m.program, m.network, m.errors, m.drains, m.changes, m.servers, m.reals, m.healthy, m.directed, m.fallback,
		m.differ)
	m.status = status.NewMetrics(reg)
	m.bgp, m.reach = advertise.NewMetrics(reg), newReachMetrics(reg)
	return m
}

// networkBuckets are those of kubeproxy_network_programming_duration_seconds, and finer ones below a quarter of a
// second.
func networkBuckets() []float64 {
	return slices.Concat([]float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5}, prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
}

// plannedChange is what a plan changed.
type plannedChange struct {
	// began is when it was planned, since are the times of its causes in the cluster.
	began time.Time
	since []time.Time
	work  *dataplane.Work
}

// unprogrammedMost bounds the changes that wait for failed work; the oldest are not measured.
const unprogrammedMost = 1000

// measureChanges records the latency of the planned changes that are programmed now, and returns when the oldest of
// them was planned: now, for none.
func (s *Speaker) measureChanges() (began time.Time) {
	began = s.began
	s.unprogrammed = slices.DeleteFunc(s.unprogrammed, func(c plannedChange) bool {
		if s.dataplane.Pending(c.work) {
			return false
		}
		for _, at := range c.since {
			s.cfg.Metrics.network.Observe(time.Since(at).Seconds())
		}
		if c.began.Before(began) {
			began = c.began
		}
		return true
	})
	s.unprogrammed = s.unprogrammed[max(0, len(s.unprogrammed)-unprogrammedMost):]
	return began
}

func (m *Metrics) reconciled(err error, took time.Duration) {
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

func (m *Metrics) direct(virtuals, fallbacks int) {
	m.directed.Set(float64(virtuals))
	m.fallback.Set(float64(fallbacks))
}

func (m *Metrics) table(servers, reals int) {
	m.servers.Set(float64(servers))
	m.reals.Set(float64(reals))
}
