// Package bgp tests a cluster that announces by BGP from the view of a network's routers: three nodes on a real control
// plane, each with ironlb-bgpd and a speaker, natively with the nftables data plane.
//
// Every test observes two routers at once: BIRD on the lab's router, and FRR on the machine that is otherwise the lab's
// client on the LAN, each with a client behind it. Each has a BGPPeer of its name over IPv4. Sessions added by tests
// are mostly over IPv6, so that the first ones must stay.
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

// The cluster and its routers are shared by all tests. Each removes its objects, and leaves all nodes up with both
// processes.
var (
	cluster *lab.Cluster
	tors    []*tor
	vip     = lab.FreeRange.Addr().Next()
	vip6    = lab.FreeRange6.Addr().Next()
)

// base are the objects at the start of every test, by kind and name, with their specs.
var base = map[string]string{
	"IPAddressPool/routed":    fmt.Sprintf(`{addresses: [%q, %q]}`, lab.FreeRange, lab.FreeRange6),
	"BGPAdvertisement/routed": `{ipAddressPools: [routed]}`,
}

func TestMain(m *testing.M) {
	// Nodes stay Ready over an outage of the API server, as by default: a Service must not lose its endpoints after
	// one.
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

// service returns the manifest of a Service with these addresses of both families; more is added to its spec.
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

// startSpeaker restarts the node's speaker.
func startSpeaker(ctx context.Context, n *lab.Node) error {
	return n.StartSpeaker(ctx, "--config", filepath.Join(cluster.Dir, "speaker.yaml"))
}

// startTor starts a router on a machine, with a session over IPv4 for each node, and a client behind it.
//
// The client must not be on the router's own machine. Since Linux 6.16 (65e9024643c7) a kernel with several next hops
// chooses one at random for a connection of its own. For packets of the connection sent without its socket it uses the
// hash of the ports: a RST passes another node than the SYN. That broke one connection in some hundred. If a
// client reuses a port, its node masquerades again and discards the previous port. The next connection that gets this
// port finds the Pod in TIME_WAIT. The Pod answers with an ACK, and only the client's RST ends that (RFC 9293, 3.5.2),
// ten milliseconds before the next SYN. A router hashes forwarded packets by their ports, each packet alike.
func startTor(ctx context.Context, kind string, on, client *lab.Machine) (*tor, error) {
	// Connections of one client spread over all next hops, as on hardware routers.
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
