package member

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/priority"
	"github.com/ironlb/ironlb/speaker/view"
)

type metrics struct {
	alive     prometheus.Gauge
	observer  prometheus.Gauge
	isolated  prometheus.Gauge
	interval  prometheus.Gauge
	dead      prometheus.Gauge
	detection prometheus.Histogram
	lateness  prometheus.Histogram
	dropped   map[Drop]prometheus.Counter
	unsent    prometheus.Counter
	wedged    prometheus.Counter
	filtered  prometheus.Counter
	wakes     prometheus.Counter
	classes   *prometheus.GaugeVec
	counters  []counter
	last      Counts
}

// counter is one of the core's counters and its accessor.
type counter struct {
	metric prometheus.Counter
	value  func(*Counts) uint64
}

func newMetrics(reg prometheus.Registerer) *metrics {
	const ns, sub = "ironlb", "liveness"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	count := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	m := &metrics{
		alive:    gauge("peers_alive", "Other nodes whose speaker is alive."),
		observer: gauge("observer", "1 while this node claims nothing, after a start or a stall."),
		isolated: gauge("isolated_interfaces", "Interfaces on which no other node is received although other nodes receive each other there."),
		interval: gauge("interval_seconds", "Interval of this node's heartbeats. With more than 200 other nodes it grows with their number."),
		dead:     gauge("dead_seconds", "Silence after which other nodes count this node as dead. It grows with the interval."),
		detection: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: "failover", Name: "detection_seconds",
			Help: "Silence of a node, on one path, when it was found dead there.", Buckets: []float64{.1, .2, .25, .3, .35, .4, .45, .5, .55, .6, .7, .8, 1, 2, 5}}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "tick_late_seconds",
			Help: "Delay of the liveness loop's ticks after they were due.", Buckets: prometheus.ExponentialBuckets(.0001, 2.5, 10)}),
		classes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "scheduling_class",
			Help: "1 for the scheduling class of the liveness thread."}, []string{"class"}),
		dropped: map[Drop]prometheus.Counter{},
		unsent:  count("unsent_total", "Datagrams that could not be sent."),
		filtered: count("filtered_total",
			"Datagrams dropped by the kernel: not from a speaker of this cluster, or the receive buffer was full."),
		wakes:  count("wakes_total", "Times that the liveness thread woke: for its own heartbeats, and for what must be read at once."),
		wedged: count("wedged_total", "Times that the reconcile loop stalled and all VirtualIPs were released."),
	}
	for _, c := range priority.Classes {
		m.classes.WithLabelValues(string(c)) // 0 until Run
	}
	m.counters = []counter{
		{count("received_total", "Datagrams received."), func(c *Counts) uint64 { return c.Received }},
		{count("sent_total", "Datagrams to send."), func(c *Counts) uint64 { return c.Sent }},
		{count("broadcast_total", "Datagrams to send by broadcast, which all hosts of a segment receive."),
			func(c *Counts) uint64 { return c.Broadcast }},
		{count("relay_requests_total", "Requests to other nodes for relay evidence of a silent node."), func(c *Counts) uint64 { return c.RelayRequests }},
		{count("relayed_total", "Nodes kept alive by relay evidence of another node."), func(c *Counts) uint64 { return c.Relayed }},
		{count("false_deaths_total", "Nodes received again without a restart after they counted as dead."), func(c *Counts) uint64 { return c.FalseDeaths }},
		{count("clock_stops_total",
			"Times that this node's clock stopped while those of other nodes did not, as when a virtual machine is paused."),
			func(c *Counts) uint64 { return c.ClockStops }},
		{count("fences_total", "Times that this node stalled for too long and released all VirtualIPs."), func(c *Counts) uint64 { return c.Fences }},
	}
	drops := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "dropped_total",
		Help: "Datagrams dropped, by reason."}, []string{"reason"})
	for _, reason := range append(Drops, "unreadable") {
		m.dropped[reason] = drops.WithLabelValues(string(reason))
	}
	if reg != nil {
		reg.MustRegister(m.alive, m.observer, m.isolated, m.interval, m.dead, m.detection, m.lateness)
		reg.MustRegister(m.unsent, m.wedged, m.filtered, m.wakes, m.classes, drops)
		for _, c := range m.counters {
			reg.MustRegister(c.metric)
		}
	}
	return m
}

// class publishes the scheduling class of the liveness thread.
func (m *metrics) class(now priority.Class) {
	for _, c := range priority.Classes {
		value := 0.0
		if c == now {
			value = 1
		}
		m.classes.WithLabelValues(string(c)).Set(value)
	}
}

func (m *metrics) drop(reason Drop) { m.dropped[reason].Inc() }

func (m *metrics) late(by time.Duration) { m.lateness.Observe(max(0, by).Seconds()) }

// counts updates the counters to the core's.
func (m *metrics) counts(c *Core) {
	for _, silence := range c.Silences() {
		m.detection.Observe(silence.Seconds())
	}
	if c.count == m.last {
		return
	}
	now := c.count
	for _, one := range m.counters {
		one.metric.Add(float64(one.value(&now) - one.value(&m.last)))
	}
	m.last = now
}

func (m *metrics) members(now view.Members) {
	alive, observer := 0, 0.0
	for _, p := range now.Peers {
		if p.Alive {
			alive++
		}
	}
	if now.Observer {
		observer = 1
	}
	m.alive.Set(float64(alive))
	m.observer.Set(observer)
	m.interval.Set(now.Interval.Seconds())
	m.dead.Set(now.Dead.Seconds())
	m.isolated.Set(float64(len(now.Isolated)))
}
