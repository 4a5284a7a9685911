// Package kubeproxy tests IronLB alongside a real kube-proxy of each mode, and the reports of incompatible
// combinations.
//
// IRONLB_DATAPLANE selects the data plane: "ipvs" (default; in a guest if this kernel has no IPVS) or "nftables"
// (natively, without kube-proxy's mode ipvs).
package kubeproxy

import (
	"context"
	"testing"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
)

// cluster is shared by all tests. All they observe is on node1: only it has a speaker and a kube-proxy.
var cluster *lab.Cluster

// podNodes maps the Pods to nodes: a1 and b1 are endpoints, a2 is a client.
var podNodes = map[string]int{"a1": 0, "a2": 0, "b1": 1}

const poolCIDR = "192.0.2.128/28"

const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec:
  addresses: [` + poolCIDR + `]
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec:
  ipAddressPools: [lan]
  nodeSelectors: [{matchLabels: {kubernetes.io/hostname: node1}}]
`

// dataplane is the data plane of the entire run.
var dataplane = scene.DataPlane(scene.IPVS)

func TestMain(m *testing.M) {
	config := lab.Config{Nodes: 2, KubeProxy: true, Kernel: scene.Kernel(dataplane)}
	lab.Main(m, config, func(ctx context.Context, c *lab.Cluster) error {
		cluster = c
		scene.Use(c, podNodes)
		if err := c.ApplyYAML(ctx, objects); err != nil {
			return err
		}
		for name, node := range podNodes {
			if _, err := c.AddPod(ctx, lab.PodSpec{Name: name, Node: c.Node(node)}); err != nil {
				return err
			}
		}
		return nil
	})
}
