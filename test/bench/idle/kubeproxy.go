package main

import (
	"context"
	"strings"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

const kubeProxyName = "kube-proxy"

// startKubeProxies starts kube-proxy (nftables) with its own settings on every node.
func startKubeProxies(ctx context.Context, c *lab.Cluster) (all []*process.Process, err error) {
	var ranges []string
	for _, r := range lab.PodRanges {
		ranges = append(ranges, r.String())
	}
	for _, n := range c.Nodes {
		argv, err := n.KubeProxyArgv(ctx, "nftables", lab.KubeProxyConfig{"clusterCIDR": strings.Join(ranges, ",")})
		if err != nil {
			return all, err
		}
		p, err := n.Start(ctx, kubeProxyName, host.Cmd{Argv: argv})
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// proxySubjects returns the processes in the order of the nodes.
func proxySubjects(c *lab.Cluster, all []*process.Process) (subjects []subject) {
	for i, p := range all {
		subjects = append(subjects, subject{kubeProxyName, c.Nodes[i].Name, p})
	}
	return subjects
}

func kubeProxiesReady(ctx context.Context, c *lab.Cluster) error {
	for _, n := range c.Nodes {
		if _, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:10256/healthz"); err != nil {
			return err
		}
	}
	return nil
}
