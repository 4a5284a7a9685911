package main

import "github.com/prometheus/client_golang/prometheus"

// dataplaneMetric returns what notes as a metric what forwards.
func dataplaneMetric(reg prometheus.Registerer) func(dataplane) {
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Name: "dataplane",
		Help: "1 for what forwards on this node, ipvs or nftables."}, []string{"kind"})
	reg.MustRegister(gauge)
	return func(kind dataplane) { gauge.WithLabelValues(string(kind)).Set(1) }
}
