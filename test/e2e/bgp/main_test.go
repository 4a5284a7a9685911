// Package bgp tests what a network's router sees of a cluster that announces by BGP: three nodes, each with ironlb-bgpd beside its speaker,
// natively with the nftables data plane, and BIRD on the lab's router. A client behind that router asks all the time.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
)

const (
	nodeASN   = 65001
	routerASN = 65002
	patience  = time.Minute
)

// cluster and tor, its router, are shared by all tests. Each cleans up what it made, and leaves all nodes up with both processes.
var (
	cluster *lab.Cluster
	tor     router.Router
	place   router.Place
	vip     = lab.FreeRange.Addr().Next()
)

const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: routed}
spec: {addresses: [%q]}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPPeer
metadata: {name: tor}
spec: {myASN: %d, peerASN: %d, peerAddress: %q, connectTime: 1s, gracefulRestart: true}
---
apiVersion: ironlb.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: routed}
spec: {ipAddressPools: [routed]}
---
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {ironlb.io/ips: %q}}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
`

func TestMain(m *testing.M) {
	lab.Main(m, lab.Config{Nodes: 3, Kernel: lab.Native, BGP: true}, func(ctx context.Context, c *lab.Cluster) error {
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
	place = router.Place{Host: cluster.Router.Host(), Namespace: "/run/netns/" + cluster.Router.Namespace, Logs: cluster.Dir}
	c := router.Config{ASN: routerASN, ID: cluster.Router.Addr}
	for _, n := range cluster.Nodes {
		c.Neighbors = append(c.Neighbors, router.Neighbor{Name: n.Name, Address: n.Addr, ASN: nodeASN})
	}
	var err error
	if tor, err = router.StartBIRD(ctx, place, c); err != nil {
		return err
	}
	if err := cluster.ApplyYAML(ctx, fmt.Sprintf(objects, lab.FreeRange, nodeASN, routerASN, cluster.Router.Addr, vip)); err != nil {
		return err
	}
	_, err = cluster.AddPod(ctx, lab.PodSpec{Name: "web", Node: cluster.Node(0), Labels: map[string]string{"app": "web"}})
	return err
}

// speaker starts the node's speaker again.
func speaker(ctx context.Context, n *lab.Node) error {
	return n.StartSpeaker(ctx, "--config", filepath.Join(cluster.Dir, "speaker.yaml"))
}

// routed waits until the router has the address by way of these nodes and no others.
func routed(t *testing.T, nodes ...*lab.Node) {
	t.Helper()
	var want []netip.Addr
	for _, n := range nodes {
		want = append(want, n.Addr)
	}
	slices.SortFunc(want, netip.Addr.Compare)
	err := cluster.Eventually(t.Context(), patience, fmt.Sprintf("the router has %v by way of %v", vip, want), func(ctx context.Context) error {
		routes, err := tor.Routes(ctx, 4)
		if err != nil {
			return err
		}
		for _, r := range routes {
			via := slices.SortedFunc(slices.Values(r.Via), netip.Addr.Compare)
			if r.Prefix == netip.PrefixFrom(vip, 32) && slices.Equal(via, want) {
				return nil
			}
		}
		return fmt.Errorf("it has %v\n%s", routes, tor.Log())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sessions of the router, which must all be established.
func sessions(ctx context.Context) (map[string]router.Session, error) {
	all, err := tor.Sessions(ctx)
	for name, s := range all {
		if !s.Established {
			err = errors.Join(err, fmt.Errorf("the session with %s is %s", name, s.State))
		}
	}
	if err == nil && len(all) != len(cluster.Nodes) {
		err = fmt.Errorf("there are %d sessions", len(all))
	}
	return all, err
}
