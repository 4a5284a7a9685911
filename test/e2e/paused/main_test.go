// Package paused tests a node whose virtual machine is paused and resumed, as when a hypervisor migrates or snapshots
// it: none of its own clocks shows that time has passed, and by then another node owns its addresses.
//
// The first node is a virtual machine under QEMU, emulated without KVM. The two others run natively, with the nftables
// data plane, and so does the Pod behind the address. A watcher on a bare port requests the address ten times a second
// and records the frames about it.
package paused

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/test/lab"
)

// cluster is shared by all tests.
var cluster *lab.Cluster

const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec: {addresses: [%q, %q]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec:
  ipAddressPools: [lan]
  nodeSelectors: [{matchLabels: {lb: may-answer}}]
`

func TestMain(m *testing.M) {
	config := lab.Config{Nodes: 3, VirtualMachines: 1, Kernel: lab.Native}
	lab.Main(m, config, func(ctx context.Context, c *lab.Cluster) error {
		cluster = c
		return start(ctx)
	})
}

func start(ctx context.Context) error {
	config := filepath.Join(cluster.Dir, "speaker.yaml")
	if err := os.WriteFile(config, []byte("dataplane: nftables\n"), 0o600); err != nil {
		return err
	}
	if _, err := cluster.StartCCM(ctx, "--leader-elect=false"); err != nil {
		return err
	}
	if err := cluster.StartSpeakers(ctx, "--config", config); err != nil {
		return err
	}
	if err := cluster.ApplyYAML(ctx, fmt.Sprintf(objects, lab.FreeRange, lab.FreeRange6)); err != nil {
		return err
	}
	web := lab.PodSpec{Name: "web", Node: cluster.Node(2), Labels: map[string]string{"app": "web"}}
	_, err := cluster.AddPod(ctx, web)
	return err
}

// label sets the label of candidate nodes to a JSON value.
func label(ctx context.Context, value string, nodes ...*lab.Node) error {
	patch := []byte(`{"metadata":{"labels":{"lb":` + value + `}}}`)
	for _, n := range nodes {
		_, err := cluster.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("label node %s: %w", n.Name, err)
		}
	}
	return nil
}
