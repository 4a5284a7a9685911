// Package ui tests the page of kubectl ironlb ui in headless Chromium: on a cluster with L2, BGP and BFD, before and after
// the death of a node, and on a large cluster. With -update it writes the pictures of the documentation.
package ui

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
)

const (
	nodeASN, routerASN = 65001, 65002
	patience           = time.Minute
)

var cluster *lab.Cluster

// objects are a pool for L2, and one for BGP.
const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec: {addresses: [192.0.2.128/29], reuseAfter: 1h}
---
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: routed}
spec: {addresses: [192.0.2.136/29], autoAssign: false}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {ipAddressPools: [lan]}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: routed}
spec: {ipAddressPools: [routed]}
---
apiVersion: ironlb.io/v1alpha1
kind: BFDProfile
metadata: {name: tor}
spec: {}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPPeer
metadata: {name: tor}
spec: {myASN: %d, peerASN: %d, peerAddress: %v, connectTime: 1s, bfdProfile: tor}
`

// service is a Service of the Pods, with an address of a pool.
const service = `
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, annotations: {ironlb.io/ip-pool: %s}}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: http}]}
`

// Services by the way in which they are announced.
var (
	onLAN  = []string{"cart", "checkout", "login", "search", "shop", "video"}
	routed = []string{"api", "mail"}
)

func TestMain(m *testing.M) {
	lab.Main(m, lab.Config{Nodes: 3, Kernel: lab.Native, BGP: true}, func(ctx context.Context, c *lab.Cluster) error {
		cluster = c
		return start(ctx)
	})
}

func start(ctx context.Context) error {
	if _, err := cluster.StartCCM(ctx, "--leader-elect=false"); err != nil {
		return err
	}
	config := filepath.Join(cluster.Dir, "speaker.yaml")
	if err := os.WriteFile(config, []byte("dataplane: nftables\n"), 0o600); err != nil {
		return err
	}
	if err := cluster.StartSpeakers(ctx, "--config", config); err != nil {
		return err
	}
	peers := router.Config{ASN: routerASN, ID: cluster.Router.Addr}
	for _, n := range cluster.Nodes {
		peers.Neighbors = append(peers.Neighbors, router.Neighbor{Name: n.Name, Address: n.Addr, ASN: nodeASN,
			BFD: router.BFDTimers{Interval: 300 * time.Millisecond, Multiplier: 3}})
	}
	place := router.Place{Host: cluster.Router.Host(), Namespace: "/run/netns/" + cluster.Router.Namespace, Logs: cluster.Dir}
	if _, err := router.Kinds["bird"](ctx, place, peers); err != nil {
		return err
	}
	if err := cluster.ApplyYAML(ctx, fmt.Sprintf(objects, nodeASN, routerASN, cluster.Router.Addr)); err != nil {
		return err
	}
	for pool, names := range map[string][]string{"lan": onLAN, "routed": routed} {
		for _, name := range names {
			if err := cluster.ApplyYAML(ctx, fmt.Sprintf(service, name, pool)); err != nil {
				return err
			}
		}
	}
	for i, n := range cluster.Nodes[1:] {
		if _, err := cluster.AddPod(ctx, lab.PodSpec{Name: fmt.Sprintf("web-%d", i+1), Node: n, Labels: map[string]string{"app": "web"}}); err != nil {
			return err
		}
	}
	return nil
}
