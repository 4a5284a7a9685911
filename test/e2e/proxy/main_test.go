// Package proxy tests IronLB as the only service proxy of a cluster: Kubernetes' own end-to-end tests of Services,
// rewritten for the lab (the references name the originals: test/e2e/network/loadbalancer.go, service.go and others,
// v1.36.3).
//
// The Services are of both families, and every check of an IPv4 address is repeated for its IPv6 twin at the same time.
//
// IRONLB_DATAPLANE selects the data plane: "ipvs" (default; in a guest if this kernel has no IPVS) or "nftables"
// (natively).
package proxy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
)

// cluster is shared by all tests. Its Pods are endpoints and clients: a1 and a2 on node1, b1 on node2, c1 on node3.
// Each test removes its objects.
var cluster *lab.Cluster

var podNodes = map[string]int{"a1": 0, "a2": 0, "b1": 1, "c1": 2}

const pool = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec:
  addresses: [192.0.2.128/28, "2001:db8:0:1::80/124"]
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec:
  ipAddressPools: [lan]
`

// dataplane is the data plane of the entire run.
var dataplane = scene.DataPlane(scene.IPVS)

func TestMain(m *testing.M) {
	config := lab.Config{Kernel: scene.Kernel(dataplane)}
	lab.Main(m, config, func(ctx context.Context, c *lab.Cluster) error {
		cluster = c
		scene.UseBoth(c, podNodes)
		return start(ctx)
	})
}

func start(ctx context.Context) error {
	// The size of conntrack's table belongs to the initial network namespace.
	text := fmt.Sprintf("serviceProxy: true\nexternalIPCIDRs: [0.0.0.0/1, 128.0.0.0/1, \"2001:db8::/32\"]\ndataplane: %s\nconntrack: {maxPerCore: 0, min: 0}\n", dataplane)
	if err := os.WriteFile(speakerConfig(), []byte(text), 0o600); err != nil {
		return err
	}
	if _, err := cluster.StartCCM(ctx, "--leader-elect=false", "--service-proxy", "--external-ip-cidrs=0.0.0.0/1,128.0.0.0/1,2001:db8::/32"); err != nil {
		return err
	}
	if err := cluster.StartSpeakers(ctx, "--config", speakerConfig()); err != nil {
		return err
	}
	if err := cluster.ApplyYAML(ctx, pool); err != nil {
		return err
	}
	for name, node := range podNodes {
		if _, err := cluster.AddPod(ctx, lab.PodSpec{Name: name, Node: cluster.Node(node)}); err != nil {
			return err
		}
	}
	for _, n := range cluster.Nodes {
		if err := n.SpeakerReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

func speakerConfig() string { return filepath.Join(cluster.Dir, "speaker.yaml") }
