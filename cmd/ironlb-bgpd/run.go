package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/speaker/bgp"
)

// idleHeap is the memory that the parent may use before a garbage collection: BFD must not wait for the collector.
// With 10,000 prefixes it needs about 20 MB.
const idleHeap = 96 << 20

// run runs the parent. It returns after a shutdown when ctx ends, or when a part of it fails permanently.
func run(ctx context.Context, o options, log *slog.Logger) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var d *bgp.Daemon
	d = bgp.NewDaemon(bgp.DaemonOptions{
		Log: log, Socket: o.socket, Hold: o.hold, Metrics: bgp.NewMetrics(registry),
		Child: func(peer string) *exec.Cmd {
			return exec.Command("/proc/self/exe", slices.Concat([]string{"gobgp"}, o.logs.Flags(),
				[]string{"--peer-memory", fmt.Sprint(o.peerMemory), "--peer", peer})...)
		},
		BFD: newBFD(log, registry, func(all map[string]bgp.BFDStatus) { d.BFDChanged(all) }),
	})
	metrics := func(context.Context) error { return nil }
	if o.metricsAddress != "" {
		listener, err := net.Listen("tcp", o.metricsAddress)
		if err != nil {
			return fmt.Errorf("listen for metrics (choose another --metrics-bind-address, chart value bgpd.metricsBindAddress): %w", err)
		}
		metrics = func(ctx context.Context) error { return serveMetrics(ctx, listener, registry) }
	}
	log.Info("start", "version", version.String(), "socket", o.socket, "hold", o.hold)
	defer log.Info("stop")
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, life := errgroup.WithContext(life)
	group.Go(func() error {
		defer end()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		return d.Run(ctx)
	})
	group.Go(func() error { return metrics(life) })
	return group.Wait()
}

// serveMetrics serves until ctx ends.
func serveMetrics(ctx context.Context, listener net.Listener, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := health.NewServer(mux)
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(health.Bound(listener)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
