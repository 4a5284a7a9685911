package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"

	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/scrape"
)

// dataplaneMetric returns a function that records the data plane as a metric.
func dataplaneMetric(reg prometheus.Registerer) func(dataplaneKind) {
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Name: "dataplane",
		Help: "1 for what forwards on this node, ipvs or nftables."}, []string{"kind"})
	reg.MustRegister(gauge)
	return func(kind dataplaneKind) { gauge.WithLabelValues(string(kind)).Set(1) }
}

// metricsHandler serves this process's metrics, and at /metrics/bgpd those of the ironlb-bgpd at a socket.
func metricsHandler(registry *prometheus.Registry, bgpSocket string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+scrape.Path, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	if bgpSocket != "" {
		mux.HandleFunc("GET "+scrape.Path+"/bgpd", func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), bgpdLimit)
			defer cancel()
			text, err := bgp.QueryMetrics(ctx, bgpSocket)
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
			_, _ = io.WriteString(w, text) // fails when the client has disconnected
		})
	}
	return scrape.Limit(mux)
}

// bgpdLimit is the time limit for the metrics of ironlb-bgpd.
const bgpdLimit = 2 * time.Second

// serveMetrics serves the metrics to authorized clients, if configured. It does not end the speaker if it cannot listen.
func (p *process) serveMetrics() (err error) {
	p.metrics = metricsHandler(p.registry, p.bgpSocket)
	if !p.secureAddress.IsValid() {
		return nil
	}
	endpoint := health.Endpoint{Name: "metrics", Field: "--secure-metrics-bind-address, chart value speaker.metricsBindAddress", Addr: p.secureAddress.AddrPort}
	if p.certFile != "" {
		endpoint.TLS = scrape.FromFiles(p.certFile, p.certKeyFile, p.log)
	} else if endpoint.TLS, err = scrape.SelfSigned(p.nodeName, p.secureAddress.Addr()); err != nil {
		return err
	}
	review := func(ctx context.Context, token string) (string, bool, error) {
		return p.api.MayGet(ctx, token, scrape.Path)
	}
	endpoint.Handler = scrape.NewGate(review, p.log).Wrap(p.metrics)
	p.run(func(ctx context.Context) error { return endpoint.Run(ctx, p.log) })
	return nil
}

// handler serves metrics, health and, if wanted, profiles, without authorization.
func (p *process) handler(readyz http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(scrape.Path, p.metrics)
	mux.Handle(scrape.Path+"/", p.metrics)
	mux.HandleFunc("/healthz", p.loop.Healthz)
	mux.HandleFunc("/readyz", readyz)
	if p.profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// serve serves metrics and health until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := health.NewServer(handler)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(health.Bound(listener)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics and health: %w", err)
	}
	return nil
}
