// Command ironlb-speaker runs on each node: it programs the node's IPVS and firewall for the Services of type
// LoadBalancer and answers ARP for the addresses that the node owns.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
	"github.com/ironlb/ironlb/speaker/l2"
	"github.com/ironlb/ironlb/speaker/link"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ironlb-speaker:", err)
		os.Exit(1)
	}
}

// run wires the parts together and returns when ctx ends or one of them fails for good.
func run(ctx context.Context, o options) error {
	log := o.logger()
	klog.SetSlogLogger(log)
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("find the API server (give --kubeconfig outside of a Pod): %w", err)
	}
	config.UserAgent = "ironlb-speaker"
	listener, err := net.Listen("tcp", o.metricsAddress)
	if err != nil {
		return fmt.Errorf("listen for metrics and health (choose another --metrics-bind-address): %w", err)
	}
	defer listener.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	node, closeNode, err := openNode(o.config, log, dataplaneMetric(registry))
	if err != nil {
		return err
	}
	defer closeNode()

	kick, healthz := speaker.NewKick(), health.NewHealthz()
	changed := func() {
		healthz.Queued(bothFamilies...)
		kick.Now()
	}
	source, reporter, events, err := kube.New(config, kube.Options{Node: o.nodeName, ServiceProxy: o.config.ServiceProxy}, changed, log)
	if err != nil {
		return err
	}
	announcer := l2.New(l2.Config{Log: log, Kick: kick.Look})
	ports := health.NewPorts(log, healthz.Healthy)
	defer ports.Close()
	probes := newChecks(source, log)
	node.HealthPorts, node.Checks = healthPorts{ports, events}, probes
	pairing := newPairing(log, registry)
	pairing.ours = situation(o, source, node.VirtualServers.(*virtualServers).inIPVS)
	pairing.warn, pairing.conflict = events.Warn, reporter.Conflict
	detector := kubeproxy.New(kubeproxy.Config{Log: log, Changed: pairing.found})
	loop := speaker.New(speaker.Config{
		NodeName:  o.nodeName,
		Plan:      o.plan(),
		Log:       log,
		Kick:      kick,
		Source:    source,
		Node:      node,
		Announcer: announcer,
		Reporter:  reporter,
		Metrics:   speaker.NewMetrics(registry),
		Progress:  progress{healthz, node.VirtualServers.(*virtualServers).programmed},
		Destroyed: detector.Suspect,
	})

	log.Info("start", "node", o.nodeName, "apiserver", config.Host, "metrics", listener.Addr().String())
	defer log.Info("stop; addresses, virtual servers and firewall stay", "node", o.nodeName)
	noteHost(node.Addresses.(*link.Link), source, log) // before the first plan: what is served at them must not go
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return source.Run(ctx) })
	group.Go(func() error { return reporter.Run(ctx) })
	group.Go(func() error { return events.Run(ctx) })
	group.Go(func() error { return announcer.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	group.Go(func() error {
		return link.Watch(ctx, func() {
			announcer.Refresh()
			kick.Look()
			noteHost(node.Addresses.(*link.Link), source, log)
		})
	})
	group.Go(func() error { return probes.prober.Run(ctx) })
	group.Go(func() error { return detector.Run(ctx) })
	group.Go(func() error { return pairing.run(ctx) })
	group.Go(func() error { return keepPolicies(ctx, log, nft.Policies{}.Apply) })
	if o.config.ServiceProxy {
		group.Go(func() error { return healthz.Run(ctx, log, o.config.HealthzAddress) })
	}
	group.Go(func() error { return serve(ctx, listener, loop.Healthz, pairing.readyz(loop.Readyz), registry) })
	return group.Wait()
}

// serve answers for metrics and health until ctx ends.
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
