package main

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/l2"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/reach"
	"github.com/ironlb/ironlb/speaker/traffic"
	"github.com/ironlb/ironlb/test/metricsdoc"
)

func TestMetricsAreDocumented(t *testing.T) {
	metricsdoc.Check(t, "../../docs/reference/metrics.md", "ironlb-speaker", func(reg prometheus.Registerer) {
		log := slog.New(slog.DiscardHandler)
		speaker.NewMetrics(reg)
		reach.NewMetrics(reg)
		l2.New(l2.Config{Log: log, Metrics: reg})
		bgp.NewClient(bgp.ClientOptions{Log: log, Metrics: reg})
		if _, err := member.New(member.Options{Node: "a", Cluster: "c", Profile: member.Standard, Port: member.DefaultPort, Log: log, Metrics: reg, Keys: [][]byte{make([]byte, 32)}}); err != nil {
			t.Fatal(err)
		}
		dataplaneMetric(reg)
		traffic.New(nil, traffic.Endpoints, log, reg)
		newChecks(nil, log, reg)
		newNodeChecks(log, reg)
	})
}
