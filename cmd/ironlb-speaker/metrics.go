package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ironlb/ironlb/ipvs/health"
)

// dataplaneMetric returns a function that records the data plane as a metric.
func dataplaneMetric(reg prometheus.Registerer) func(dataplaneKind) {
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Name: "dataplane",
		Help: "1 for what forwards on this node, ipvs or nftables."}, []string{"kind"})
	reg.MustRegister(gauge)
	return func(kind dataplaneKind) { gauge.WithLabelValues(string(kind)).Set(1) }
}

// serve serves metrics and health until ctx ends.
func serve(ctx context.Context, listener net.Listener, healthz, readyz http.HandlerFunc, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", healthz)
	mux.HandleFunc("/readyz", readyz)
	server := health.NewServer(mux)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(health.Bound(listener)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics and health: %w", err)
	}
	return nil
}
