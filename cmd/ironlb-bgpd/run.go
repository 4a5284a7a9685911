package main

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/ironlb/ironlb/cmd/internal/version"
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
		Log: log, Socket: o.socket, Hold: o.hold, Metrics: bgp.NewMetrics(registry), Gatherer: registry,
		Child: func(peer string) *exec.Cmd {
			return exec.Command("/proc/self/exe", slices.Concat([]string{"gobgp"}, o.logs.Flags(),
				[]string{"--peer-memory", fmt.Sprint(o.peerMemory), "--peer", peer})...)
		},
		BFD: newBFD(log, registry, func(all map[string]bgp.BFDStatus) { d.BFDChanged(all) }),
	})
	log.Info("start", "version", version.String(), "socket", o.socket, "hold", o.hold)
	defer log.Info("stop")
	return d.Run(ctx)
}
