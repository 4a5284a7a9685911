// Package e2e tests what a user sees: Services on a real control plane, packets through real nodes.
//
// All tests share one cluster of three nodes (package lab). IRONLB_LOGS names a folder to keep the logs of a failed run in.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
)

// cluster is shared by all tests. Each cleans up what it made, and leaves all nodes up with a speaker.
var cluster *lab.Cluster

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
	flag.Parse()
	if testing.Short() {
		fmt.Println("left out: needs root and a lab")
		os.Exit(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code, err := run(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	if cluster, err = lab.New(ctx, lab.Config{Progress: os.Stderr}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	// An interrupt removes the lab; the tests then fail by themselves.
	stop := context.AfterFunc(ctx, func() { cluster.Close() })
	defer stop()
	defer func() {
		if dir := os.Getenv("IRONLB_LOGS"); dir != "" && (code != 0 || err != nil) {
			err = errors.Join(err, cluster.SaveLogs(dir))
		}
	}()
	if err := layForeign(ctx, cluster.Nodes...); err != nil {
		return 1, fmt.Errorf("place foreign objects: %w", err)
	}
	if _, err := cluster.StartCCM(ctx); err != nil {
		return 1, err
	}
	if err := cluster.StartSpeakers(ctx); err != nil {
		return 1, err
	}
	if err := cluster.ApplyYAML(ctx, pool); err != nil {
		return 1, err
	}
	for _, n := range cluster.Nodes {
		if err := speakerReady(ctx, n); err != nil {
			return 1, err
		}
	}
	code = m.Run()
	return code, cluster.Err()
}

// speakerReady waits until the node's speaker says that the node is as planned.
func speakerReady(ctx context.Context, n *lab.Node) error {
	return cluster.Eventually(ctx, 90*time.Second, "the speaker on "+n.Name+" is ready", func(ctx context.Context) error {
		_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7473/readyz")
		return err
	})
}
