// Package installed tests an installation as users have it: the chart, from the project's images, in Pods on nodes with
// kubelets, with exactly the permissions that it ships.
//
// All tests share one cluster of three nodes alongside kube-proxy. IRONLB_LAB_LOGS names a folder for the logs of a
// failed run.
package installed

import (
	"context"
	"testing"

	"github.com/ironlb/ironlb/test/lab"
)

// cluster is shared by all tests. Each leaves all nodes Ready and all Pods running.
var cluster *lab.Cluster

func TestMain(m *testing.M) {
	config := lab.Config{Kernel: lab.Native, Kubelets: &lab.Kubelets{KubeProxy: lab.ProxyNFTables}}
	lab.Main(m, config, func(ctx context.Context, c *lab.Cluster) error {
		cluster = c
		return start(ctx)
	})
}

// start installs IronLB with its first pool in one pass. Only TestChaos upgrades at the chart's pace.
func start(ctx context.Context) error {
	return cluster.Install(ctx, "--values", "test/lab/demo/values.yaml",
		"--set", "speaker.minReadySeconds=0,bgpd.minReadySeconds=0")
}

// kubectl fails the test when the command fails, and returns its output.
func kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := cluster.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
