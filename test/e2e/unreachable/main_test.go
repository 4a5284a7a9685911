// Package unreachable tests the effect of a dead node with Pods on clients, outside the cluster and in it. The
// EndpointSlices never change, so only the speakers leave out endpoints.
//
// IRONLB_DATAPLANE selects the data plane: "ipvs" (in a guest if this kernel has no IPVS) or "nftables" (default;
// natively). With -rounds 20 the times are a measurement.
package unreachable

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
)

var (
	rounds      = flag.Int("rounds", 1, "how often each fault happens in TestNodeDies")
	profile     = flag.String("profile", "standard", "failover.profile of the speakers")
	every       = flag.Duration("every", 5*time.Millisecond, "time between two requests of a client; an emulated guest takes 100ms")
	which       = flag.String("clients", ".", "regular expression: which clients take part in TestNodeDies, such as 'outside, IPv4'; an emulated guest bears one")
	bound       = flag.Duration("bound", 3*time.Second, "how long connections may fail in TestNodeDies: 1s is promised, Kubernetes takes 40s")
	kills       = flag.Int("kills", 1, "how often a speaker is killed in TestSpeakers, and replaced, once a node at most")
	pauses      = flag.Int("pauses", 1, "how often a speaker is paused in TestSpeakers")
	control     = flag.Int("control", 0, "how often nothing happens in TestSpeakers, to see what fails by itself")
	established = flag.Int("established", 30, "connections that stay, in TestReset")
)

// cluster is shared by all tests. Two Pods on each node are endpoints and clients.
var cluster *lab.Cluster

var podNodes = map[string]int{"a1": 0, "a2": 0, "b1": 1, "b2": 1, "c1": 2, "c2": 2}

const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec: {addresses: [%q, %q]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
`

// resetAfter is shorter than the default.
const resetAfter = 3 * time.Second

// dataplane is the data plane of the entire run.
var dataplane = scene.DataPlane(scene.NFTables)

func TestMain(m *testing.M) {
	flag.Parse()
	config := lab.Config{Kernel: scene.Kernel(dataplane)}
	lab.Main(m, config, func(ctx context.Context, c *lab.Cluster) error {
		cluster = c
		scene.UseBoth(c, podNodes)
		return start(ctx)
	})
}

func start(ctx context.Context) error {
	text := fmt.Sprintf("serviceProxy: true\ndataplane: %s\nconntrack: {maxPerCore: 0, min: 0}\n"+
		"unreachableEndpoints: {resetAfter: %v}\nfailover: {profile: %s}\nstateDir: %s\n",
		dataplane, resetAfter, *profile, filepath.Join(cluster.Dir, "state"))
	if err := os.WriteFile(speakerConfig(), []byte(text), 0o600); err != nil {
		return err
	}
	if _, err := cluster.StartCCM(ctx, "--service-proxy", "--leader-elect=false"); err != nil {
		return err
	}
	if err := cluster.StartSpeakers(ctx, "--config", speakerConfig()); err != nil {
		return err
	}
	if err := cluster.ApplyYAML(ctx, fmt.Sprintf(objects, lab.FreeRange, lab.FreeRange6)); err != nil {
		return err
	}
	for name, node := range podNodes {
		if _, err := cluster.AddPod(ctx, lab.PodSpec{Name: name, Node: cluster.Node(node)}); err != nil {
			return err
		}
	}
	return nil
}

func speakerConfig() string { return filepath.Join(cluster.Dir, "speaker.yaml") }
