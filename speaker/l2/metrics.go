package l2

import "github.com/prometheus/client_golang/prometheus"

// metrics of one announcer, by family.
type metrics [families]struct {
	answers, announcements, probes, conflicts, defences, sendErrors prometheus.Counter
	// proxies are the hosts that answer for every address.
	proxies prometheus.Gauge
	// first is the duration until the first announcement.
	first prometheus.Observer
}

// newMetrics returns the metrics, registered if there is a registerer.
func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ironlb", Subsystem: "l2", Name: name, Help: help}, []string{"family"})
		if reg != nil {
			reg.MustRegister(c)
		}
		return c
	}
	answers := counter("answers_total", "ARP requests and neighbor solicitations answered.")
	announcements := counter("announcements_total", "Gratuitous ARP frames and unsolicited neighbor advertisements sent.")
	probes := counter("probes_total", "Probes sent for addresses before their first use.")
	conflicts := counter("conflicts_total", "Times that another host was found to use a VirtualIP address, at its probe or while this node holds it.")
	defences := counter("defences_total", "Answers to other hosts' probes for held addresses, and announcements against other hosts that use them.")
	sendErrors := counter("send_errors_total", "Frames that the kernel rejected.")
	first := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "ironlb", Subsystem: "l2", Name: "announce_duration_seconds",
		Help:    "Time from programming and ownership of an address to its first announcement on an interface.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}}, []string{"family"})
	if reg != nil {
		reg.MustRegister(first)
	}
	proxies := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "l2", Name: "proxies",
		Help: "Hosts that answer for every address (proxy ARP). Their answers are ignored."}, []string{"family"})
	if reg != nil {
		reg.MustRegister(proxies)
	}
	m := &metrics{}
	for family, c := range codecs {
		of := &m[family]
		of.first = first.WithLabelValues(c.family())
		of.answers, of.announcements = answers.WithLabelValues(c.family()), announcements.WithLabelValues(c.family())
		of.probes, of.conflicts = probes.WithLabelValues(c.family()), conflicts.WithLabelValues(c.family())
		of.proxies = proxies.WithLabelValues(c.family())
		of.defences, of.sendErrors = defences.WithLabelValues(c.family()), sendErrors.WithLabelValues(c.family())
	}
	return m
}
