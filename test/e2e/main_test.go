// Package e2e tests what users see: Services on a real control plane, packets through real nodes.
//
// All tests share one cluster of three nodes. IRONLB_DATAPLANE selects the data plane: "ipvs" (default; in a guest if
// this kernel has no IPVS) or "nftables" (natively). IRONLB_LAB_LOGS names a folder for the logs of a failed run.
package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
)

// cluster is shared by all tests. Each removes its objects, and leaves all nodes up with a speaker.
var cluster *lab.Cluster

// dataplane is the data plane of the entire run.
var dataplane = scene.DataPlane(scene.IPVS)

const pool = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec:
  addresses: [192.0.2.128/28]
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec:
  ipAddressPools: [lan]
`

func TestMain(m *testing.M) {
	lab.Main(m, lab.Config{Kernel: scene.Kernel(dataplane)}, func(ctx context.Context, c *lab.Cluster) error {
		cluster = c
		return start(ctx)
	})
}

// start creates the objects of other programs on the nodes, and then starts IronLB.
func start(ctx context.Context) error {
	if err := layForeign(ctx, cluster.Nodes...); err != nil {
		return fmt.Errorf("place foreign objects: %w", err)
	}
	if _, err := cluster.StartCCM(ctx, "--leader-elect=false"); err != nil {
		return err
	}
	if err := os.WriteFile(speakerConfig(), []byte("dataplane: "+dataplane+"\n"), 0o600); err != nil {
		return err
	}
	if err := cluster.StartSpeakers(ctx, "--config", speakerConfig()); err != nil {
		return err
	}
	if err := cluster.ApplyYAML(ctx, pool); err != nil {
		return err
	}
	for _, n := range cluster.Nodes {
		if err := n.SpeakerReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

func speakerConfig() string { return filepath.Join(cluster.Dir, "speaker.yaml") }

// startSpeaker starts the node's speaker again.
func startSpeaker(ctx context.Context, n *lab.Node) error {
	return n.StartSpeaker(ctx, "--config", speakerConfig())
}
