// Package bgp tests what a network's routers see of a cluster that announces by BGP: three nodes on a real control plane, each with ironlb-bgpd
// beside its speaker, natively with the nftables data plane.
//
// Every test looks at two routers at once: BIRD on the lab's router, and FRR on what else is the lab's client on the LAN, each with a client behind
// it. Each has a BGPPeer of its name over IPv4; what tests add is mostly over IPv6, so that the sessions of the first must stay.
package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
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

// The cluster and its routers are shared by all tests. Each cleans up what it made, and leaves all nodes up with both processes.
var (
	cluster *lab.Cluster
	tors    []*tor
	vip     = lab.FreeRange.Addr().Next()
	vip6    = lab.FreeRange6.Addr().Next()
)

// base are the objects that are there at the start of every test, by kind and name; each is its spec.
var base = map[string]string{
	"IPAddressPool/routed":    fmt.Sprintf(`{addresses: [%q, %q]}`, lab.FreeRange, lab.FreeRange6),
	"BGPAdvertisement/routed": `{ipAddressPools: [routed]}`,
}

func TestMain(m *testing.M) {
	// Nodes stay Ready over an outage of the API server, as they would by default: no Service is to lose its endpoints after one.
	lab.Main(m, lab.Config{Nodes: 3, Kernel: lab.Native, BGP: true, NodeGrace: time.Minute}, func(ctx context.Context, c *lab.Cluster) error {
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
	bird, err := startTor(ctx, "bird", cluster.Router, cluster.Remote)
	if err != nil {
		return err
	}
	behind, err := cluster.Behind(ctx, cluster.Client)
	if err != nil {
		return err
	}
	frr, err := startTor(ctx, "frr", cluster.Client, behind)
	if err != nil {
		return err
	}
	tors = []*tor{bird, frr}
	for _, r := range tors {
		base["BGPPeer/"+r.name] = r.peer("", "")
	}
	for key, spec := range base {
		if err := put(ctx, key, spec); err != nil {
			return err
		}
	}
	if err := cluster.ApplyYAML(ctx, service("web", vip, vip6, "")); err != nil {
		return err
	}
	_, err = cluster.AddPod(ctx, lab.PodSpec{Name: "web", Node: cluster.Node(0), Labels: map[string]string{"app": "web"}})
	return err
}

// service is the manifest of one with these addresses of both families; more is added to its spec.
func service(name string, v4, v6 netip.Addr, more string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, labels: {app: %[1]s}, annotations: {ironlb.io/ips: "%[2]v,%[3]v"}}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}, {name: udp, port: 53, protocol: UDP, targetPort: udp}]
  %[4]s
`, name, v4, v6, more)
}

// startSpeaker starts the node's speaker again.
func startSpeaker(ctx context.Context, n *lab.Node) error {
	return n.StartSpeaker(ctx, "--config", filepath.Join(cluster.Dir, "speaker.yaml"))
}

// startTor starts a router on a machine, with a session over IPv4 for each node, and a client behind it.
//
// The client may not be on the router's own machine. Since Linux 6.16 (65e9024643c7) a kernel with several next hops takes one at random for a
// connection of its own, and that of the ports' hash for what it sends of the connection without its socket: a RST goes by another node than the
// SYN did. That cost one connection in some hundred. Where a client uses a port again, its node masquerades anew and forgets the port of before;
// the next connection that draws that one finds the Pod in TIME_WAIT. The Pod answers with an ACK, and only the client's RST ends that (RFC 9293,
// 3.5.2), ten milliseconds before the next SYN. What a router forwards is hashed by its ports, each packet alike.
func startTor(ctx context.Context, kind string, on, client *lab.Machine) (*tor, error) {
	// Connections of one client spread over all next hops, as in routers of hardware.
	if _, err := on.Exec(ctx, "sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1", "net.ipv6.fib_multipath_hash_policy=1",
		"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"); err != nil {
		return nil, err
	}
	r := &tor{name: kind, machine: on, client: client, config: router.Config{ASN: routerASN, ID: on.Addr}}
	r.place = router.Place{Host: on.Host(), Namespace: "/run/netns/" + on.Namespace, Logs: cluster.Dir}
	for _, n := range cluster.Nodes {
		r.config.Neighbors = append(r.config.Neighbors, router.Neighbor{Name: n.Name, Address: n.Addr, ASN: nodeASN})
	}
	var err error
	r.Router, err = router.Kinds[kind](ctx, r.place, r.config)
	return r, err
}
