package main

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/test/metricsdoc"
)

func TestMetricsAreDocumented(t *testing.T) {
	metricsdoc.Check(t, "../../docs/reference/metrics.md", "ironlb-bgpd", func(reg prometheus.Registerer) {
		bgp.NewMetrics(reg)
		newBFD(slog.New(slog.DiscardHandler), reg, nil)
	})
}
