package bfd

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/view"
)

type metrics struct {
	state, transmit, detection *prometheus.GaugeVec
	sent, received             *prometheus.CounterVec
	downs                      *prometheus.CounterVec
	dropped                    map[Drop]prometheus.Counter
	unsent                     prometheus.Counter
	late, silence, detected    prometheus.Histogram
}

// stateNumber is the number of a state in RFC 5880 (4.1).
var stateNumber = map[view.BFDState]float64{view.BFDAdminDown: 0, view.BFDDown: 1, view.BFDInit: 2, view.BFDUp: 3}

func newMetrics(reg prometheus.Registerer) *metrics {
	const ns, sub = "ironlb", "bfd"
	gauges := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, []string{"peer"})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		state:     gauges("state", "State of the session: 0 AdminDown, 1 Down, 2 Init, 3 Up."),
		transmit:  gauges("transmit_interval_seconds", "Interval of sent packets, without jitter; 0 if none are sent."),
		detection: gauges("detection_time_seconds", "Silence after which the session goes down; 0 while no packets are received."),
		sent:      counters("sent_total", "Packets sent.", "peer"),
		received:  counters("received_total", "Packets accepted.", "peer"),
		downs:     counters("downs_total", "How often a session that was up went down, by reason.", "peer", "reason"),
		dropped:   map[Drop]prometheus.Counter{},
		unsent:    prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "unsent_total", Help: "Packets that could not be sent."}),
		late:      histogram("tick_late_seconds", "Delay of the BFD loop's ticks after they were due.", prometheus.ExponentialBuckets(.0001, 2.5, 10)),
		silence: histogram("silence_ratio", "Silence of a peer before each of its packets, as a share of the detection time.",
			[]float64{.25, .3, .35, .4, .5, .6, .7, .8, .9, 1, 2}),
		detected: histogram("detection_seconds", "Silence of a peer when its session expired.",
			[]float64{.05, .1, .15, .2, .25, .3, .35, .4, .5, .6, .75, .9, 1, 1.5, 3, 10}),
	}
	drops := counters("dropped_total", "Packets dropped, by reason.", "reason")
	for _, reason := range Drops {
		m.dropped[reason] = drops.WithLabelValues(string(reason))
	}
	if reg != nil {
		reg.MustRegister(m.state, m.transmit, m.detection, m.sent, m.received, m.downs, drops, m.unsent, m.late, m.silence, m.detected)
	}
	return m
}

// counters returns the packet counters of a session. A session that ends has no name, and its counters are not
// exported.
func (m *metrics) counters(name string) (sent, received prometheus.Counter) {
	if name == "" {
		none := prometheus.NewCounter(prometheus.CounterOpts{Name: "none"})
		return none, none
	}
	return m.sent.WithLabelValues(name), m.received.WithLabelValues(name)
}

// remove removes a session's counters.
func (m *metrics) remove(name string) {
	m.sent.DeleteLabelValues(name)
	m.received.DeleteLabelValues(name)
}

// status updates the metrics of a session's status.
func (m *metrics) status(one report, was Status) {
	if one.gone {
		for _, g := range []*prometheus.GaugeVec{m.state, m.transmit, m.detection} {
			g.DeleteLabelValues(one.name)
		}
		m.downs.DeletePartialMatch(prometheus.Labels{"peer": one.name})
		return
	}
	m.state.WithLabelValues(one.name).Set(stateNumber[one.status.State])
	m.transmit.WithLabelValues(one.name).Set(one.status.Transmit.Seconds())
	m.detection.WithLabelValues(one.name).Set(one.status.Detection.Seconds())
	if n := one.status.Downs - min(was.Downs, one.status.Downs); n > 0 {
		m.downs.WithLabelValues(one.name, string(one.status.Reason)).Add(float64(n))
		if one.status.Reason == Expired {
			m.detected.Observe(one.status.Detected.Seconds())
		}
	}
}
