package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/ironlb/ironlb/test/lab"
)

// peer is a service proxy.
type peer struct {
	name string
	// ipvs is set if it programs IPVS; else it is nftables.
	ipvs bool
	// argv returns the command.
	argv func(ctx context.Context, n *lab.Node, dir string) ([]string, error)
	// ready is a URL that shows the end of the first sync, by its status or by a metric.
	ready string
	// metric, if any, is the name of a metric at ready that is then not 0.
	metric string
	// table and set name the nftables set with one element for each address and port.
	table, set string
}

var peers = []peer{
	{name: "ironlb-ipvs", ipvs: true, argv: ironlb("ipvs"), ready: "http://127.0.0.1:7950/readyz"},
	{name: "ironlb-nftables", argv: ironlb("nftables"), ready: "http://127.0.0.1:7950/readyz", table: "ironlb-lb", set: "virtuals"},
	{name: "kube-proxy-ipvs", ipvs: true, argv: kubeProxy("ipvs"), ready: kubeProxyMetrics, metric: kubeProxySynced},
	{name: "kube-proxy-nftables", argv: kubeProxy("nftables"), ready: kubeProxyMetrics, metric: kubeProxySynced, table: "kube-proxy", set: "service-ips"},
}

const (
	kubeProxyMetrics = "http://127.0.0.1:10249/metrics"
	kubeProxySynced  = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
)

func peerNames() []string {
	var names []string
	for _, p := range peers {
		names = append(names, p.name)
	}
	return names
}

func peerByName(name string) peer {
	return peers[slices.IndexFunc(peers, func(p peer) bool { return p.name == name })]
}

func ironlb(dataplane string) func(context.Context, *lab.Node, string) ([]string, error) {
	return func(ctx context.Context, n *lab.Node, dir string) ([]string, error) {
		file := filepath.Join(dir, "speaker-"+dataplane+".yaml")
		text := "serviceProxy: true\ndataplane: " + dataplane + "\npodCIDRs: [203.0.113.128/25]\nconntrack: {maxPerCore: 0, min: 0}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		return n.SpeakerArgv(ctx, "--config", file)
	}
}

// kubeProxy has no regular full sync during the measurement: only the cost of a change counts.
func kubeProxy(mode string) func(context.Context, *lab.Node, string) ([]string, error) {
	return func(ctx context.Context, n *lab.Node, _ string) ([]string, error) {
		return n.KubeProxyArgv(ctx, mode, lab.KubeProxyConfig{
			"syncPeriod": "1h",
		})
	}
}
