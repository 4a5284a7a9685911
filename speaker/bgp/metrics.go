package bgp

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/ironlb/ironlb/speaker/routes"
)

// Metrics are the metrics of ironlb-bgpd. The speaker exports those of each session.
type Metrics struct {
	starts               prometheus.Counter
	processes, connected prometheus.Gauge
	peers, routes        prometheus.Gauge
	states               *prometheus.GaugeVec
	downs                prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "ironlb", Subsystem: "bgp", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "bgp", Name: name, Help: help})
	}
	m := &Metrics{
		starts:    counter("gobgp_starts_total", "Starts of GoBGP processes; more than peers if one crashed."),
		processes: gauge("gobgp_processes", "Running GoBGP processes, one for each peer."),
		connected: gauge("speaker_connected", "1 while the speaker is connected."),
		peers:     gauge("wanted_peers", "Configured BGP peers of this node."),
		routes:    gauge("wanted_routes", "Prefixes to announce by this node."),
		states: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "bgp", Name: "process_sessions",
			Help: "BGP sessions by state (RFC 4271, 8.2.2)."}, []string{"state"}),
		downs: counter("bfd_downs_total", "How often BFD took a BGP session down."),
	}
	reg.MustRegister(m.starts, m.processes, m.connected, m.peers, m.routes, m.states, m.downs)
	return m
}

// exposition returns the metrics in Prometheus' text format.
func exposition(from prometheus.Gatherer) (string, error) {
	families, err := from.Gather()
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			return "", err
		}
	}
	return text.String(), nil
}

// child counts one process more or less.
func (m *Metrics) child(more float64) {
	if more > 0 {
		m.starts.Inc()
	}
	m.processes.Add(more)
}

func (m *Metrics) speaker(connected bool) { m.connected.Set(number(connected)) }

func (m *Metrics) wanted(peers, prefixes int) {
	m.peers.Set(float64(peers))
	m.routes.Set(float64(prefixes))
}

func (m *Metrics) bfdDown() { m.downs.Inc() }

func (m *Metrics) sessions(states map[routes.SessionState]int) {
	for _, s := range []routes.SessionState{
		routes.SessionIdle, routes.SessionConnect, routes.SessionActive, routes.SessionOpenSent, routes.SessionOpenConfirm, routes.SessionEstablished,
	} {
		m.states.WithLabelValues(string(s)).Set(float64(states[s]))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
