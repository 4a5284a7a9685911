// Package failover tests the ownership of addresses: one owner among nodes that receive one another, whatever dies,
// pauses, leaves, joins or is cut off, with the API server and without; and nothing moves without need.
//
// It runs natively, with the nftables data plane. Three nodes are candidates, and a fourth has the Pod behind all
// addresses. So a node's fault affects ownership and not the endpoint. A watcher requests each address ten times a
// second.
package failover

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/process"
)

var (
	apiDown = flag.Duration("api-down", 15*time.Second, "how long the API server is away in TestAPIServerDown")
	moves   = flag.Int("moves", 3, "how often an address is moved in TestPoliteStop and in TestDrain")
	pull    = flag.Duration("pull", 0, "for how long each node is without a speaker in TestReplaced, as while an image is pulled")
)

var candidates int // initial candidate nodes

func init() { flag.IntVar(&candidates, "candidates", 3, "nodes that may answer at first") }

// cluster is shared by all tests. Each removes its objects, and leaves all nodes up with a speaker.
var cluster *lab.Cluster

var ccm *process.Process

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
	flag.Parse()
	lab.Main(m, lab.Config{Nodes: candidates + 1, Kernel: lab.Native}, func(ctx context.Context, c *lab.Cluster) error {
		cluster = c
		return start(ctx)
	})
}

func start(ctx context.Context) error {
	if err := os.WriteFile(speakerConfig(), []byte("dataplane: nftables\n"), 0o600); err != nil {
		return err
	}
	if err := startCCM(ctx); err != nil {
		return err
	}
	for _, n := range cluster.Nodes[:candidates] {
		if err := label(ctx, n, `"may-answer"`); err != nil {
			return err
		}
		if err := n.StartSpeaker(ctx, "--config", speakerConfig()); err != nil {
			return err
		}
	}
	if err := cluster.ApplyYAML(ctx, fmt.Sprintf(objects, lab.FreeRange, lab.FreeRange6)); err != nil {
		return err
	}
	_, err := cluster.AddPod(ctx, lab.PodSpec{Name: "web", Node: cluster.Node(candidates), Labels: map[string]string{"app": "web"}})
	return err
}

// startCCM starts ironlb-ccm, and kills the one that runs. There is no election: a replica that loses the API server
// for long would end, and this is the only one.
func startCCM(ctx context.Context) (err error) {
	if ccm != nil {
		if err := ccm.Kill(); err != nil {
			return err
		}
	}
	ccm, err = cluster.StartCCM(ctx, "--leader-elect=false")
	return err
}

func speakerConfig() string { return filepath.Join(cluster.Dir, "speaker.yaml") }

// label sets the label of candidate nodes to a JSON value.
func label(ctx context.Context, n *lab.Node, value string) error {
	patch := []byte(`{"metadata":{"labels":{"lb":` + value + `}}}`)
	_, err := cluster.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
