package installed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/rare"
)

// fault is a fault of the cluster while clients connect.
type fault struct {
	name string
	// rare marks a fault that another test or fault covers as well.
	rare bool
	// lossy marks a fault that may break connections: Pods or the owner of the address die without notice.
	lossy bool
	do    func(t *testing.T, owner *lab.Node)
	// moves is the maximum number of moves of the address. A connection attempt in progress during a move may be reset,
	// because the new owner has no state for it. Without a move the open connection stays.
	moves int
}

func faults() []fault {
	system := []string{"-n", lab.SystemNamespace}
	return []fault{
		{name: "kubelet stopped for 15 s", do: stopKubelet},
		{name: "containerd restarted", do: restartContainerd},
		{name: "ironlb-speaker Pod deleted", do: func(t *testing.T, owner *lab.Node) { deletePod(t, owner, "ironlb-speaker") }},
		{name: "ironlb-bgpd Pod deleted", rare: true, do: func(t *testing.T, owner *lab.Node) { deletePod(t, owner, "ironlb-bgpd") }},
		{name: "chart upgraded", do: func(t *testing.T, _ *lab.Node) {
			// start sets minReadySeconds to 0; this is the chart's value.
			err := cluster.Install(t.Context(), "--reset-then-reuse-values",
				"--set", "speaker.podAnnotations.upgraded=yes,speaker.minReadySeconds=15")
			if err != nil {
				t.Error(err)
			}
			kubectl(t, append(system, "rollout", "status", "--timeout=180s", "daemonset/ironlb-speaker")...)
		}},
		{name: "ironlb-speaker rolled out", rare: true, do: func(t *testing.T, _ *lab.Node) { rollOut(t, "daemonset/ironlb-speaker") }},
		{name: "ironlb-ccm rolled out", rare: true, do: func(t *testing.T, _ *lab.Node) { rollOut(t, "deployment/ironlb-ccm") }},
		{name: "kube-proxy rolled out", rare: true, do: func(t *testing.T, _ *lab.Node) {
			kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/kube-proxy")
			kubectl(t, "-n", "kube-system", "rollout", "status", "--timeout=120s", "daemonset/kube-proxy")
		}},
		{name: "kubectl drain and uncordon", rare: true, moves: 1, do: drain},
		{name: "node rebooted", lossy: true, do: reboot},
	}
}

// TestChaos counts lost requests while each part of a cluster fails or is replaced. It allows none unless a part dies
// without notice.
func TestChaos(t *testing.T) {
	cluster.Need(t)
	service := serve(t)
	var table strings.Builder
	rows := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "fault\tclient\tconnections\tfailed\toutage\topen connection\tseconds")
	for _, f := range faults() {
		t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) {
			if f.rare {
				rare.Test(t)
			}
			cluster.Need(t)
			owner := ownerOf(t, service.Addr())
			clients := startClients(t, service, cluster.Client, cluster.Remote)
			began := time.Now()
			f.do(t, owner)
			settled(t)
			for _, c := range clients {
				connections, stream := c.stop(t)
				fmt.Fprintf(rows, "%s\t%s\t%d\t%d\t%s\t%s\t%.0f\n", f.name, c.name, connections.Sent, connections.Failed,
					connections.Outage.Round(time.Millisecond), stream, time.Since(began).Seconds())
				if connections.Failed > 0 {
					t.Logf("%s: failed at %v", c.name, failures(connections, began))
				}
				if !f.lossy && (connections.Failed > f.moves || !reset(connections)) {
					t.Errorf("%s: %d of %d connections failed", c.name, connections.Failed, connections.Sent)
				}
				if !f.lossy && f.moves == 0 && stream != kept {
					t.Errorf("%s: the open connection is %s", c.name, stream)
				}
			}
			if now := ownerOf(t, service.Addr()); !f.lossy && f.moves == 0 && now != owner {
				t.Errorf("the address went from %s to %s", owner.Name, now.Name)
			}
		})
	}
	if err := rows.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", table.String())
}

// client connects continuously, and keeps one connection open.
type client struct {
	name        string
	connections *lab.Prober
	stream      *lab.Prober
}

func startClients(t *testing.T, service netip.AddrPort, on ...*lab.Machine) (clients []client) {
	t.Helper()
	for _, m := range on {
		c := client{name: m.Name}
		var err error
		// With two busy cores some requests are late; a lost request has no answer for longer.
		if c.connections, err = m.StartProbe(t.Context(), lab.Probe{Network: "tcp", Target: service, Every: 20 * time.Millisecond, Timeout: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		stream := netip.AddrPortFrom(service.Addr(), probe.PortStream)
		if c.stream, err = m.StartProbe(t.Context(), lab.Probe{Network: "stream", Target: stream, Every: 100 * time.Millisecond, Timeout: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*lab.Prober{c.connections, c.stream} {
			if err := p.WaitAnswers(t.Context(), time.Minute, 10); err != nil {
				t.Fatal(err)
			}
		}
		clients = append(clients, c)
	}
	return clients
}

const kept = "kept"

// stop ends the client and returns the results of its connections, and whether the open connection is kept or "broken".
func (c client) stop(t *testing.T) (connections probe.Summary, stream string) {
	t.Helper()
	connections, err := c.connections.Stop()
	if err != nil {
		t.Error(err)
	}
	if c.stream.Broken() != nil {
		return connections, "broken"
	}
	if _, err = c.stream.Stop(); err != nil {
		t.Error(err)
	}
	return connections, kept
}

// failures lists the failed connections with time and error.
func failures(s probe.Summary, began time.Time) (list []string) {
	for _, r := range s.Results {
		if !r.OK() {
			list = append(list, fmt.Sprintf("%.2fs %s", r.Sent.Sub(began).Seconds(), r.Error))
		}
	}
	return list
}

// reset reports whether all failed connections were reset after they had been established.
func reset(s probe.Summary) bool {
	for _, r := range s.Results {
		if !r.OK() && !(r.Connected() && strings.Contains(r.Error, "reset by peer")) {
			return false
		}
	}
	return true
}

// serve creates a Service with two Pods on each node, and returns its address.
func serve(t *testing.T) netip.AddrPort {
	t.Helper()
	kubectl(t, "apply", "-f", "test/lab/demo/deployment.yaml", "-f", "test/lab/demo/web.yaml", "-f", "test/e2e/installed/testdata/stream.yaml")
	kubectl(t, "scale", "deployment/web", "--replicas=6")
	kubectl(t, "rollout", "status", "--timeout=120s", "deployment/web")
	var service netip.AddrPort
	cluster.Await(t, time.Minute, "Service web to get an address", func(ctx context.Context) error {
		s, err := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(s.Status.LoadBalancer.Ingress) == 0 {
			return errors.New("it has none")
		}
		addr, err := netip.ParseAddr(s.Status.LoadBalancer.Ingress[0].IP)
		service = netip.AddrPortFrom(addr, 80)
		return err
	})
	return service
}

// ownerOf waits for the node that announces an address.
func ownerOf(t *testing.T, addr netip.Addr) (owner *lab.Node) {
	t.Helper()
	cluster.Await(t, time.Minute, "an owner of "+addr.String(), func(ctx context.Context) error {
		var vip v1alpha1.VirtualIP
		if err := cluster.Objects.Get(ctx, types.NamespacedName{Name: addr.String()}, &vip); err != nil {
			return err
		}
		if owner = cluster.NodeByName(vip.Status.Node); owner == nil {
			return fmt.Errorf("it is %q", vip.Status.Node)
		}
		return nil
	})
	return owner
}

// settled waits until every node is Ready and every Pod runs.
func settled(t *testing.T) {
	t.Helper()
	for _, n := range cluster.Nodes {
		if err := n.WaitReady(t.Context(), 3*time.Minute, corev1.ConditionTrue); err != nil {
			t.Fatal(err)
		}
	}
	for _, workload := range []string{"daemonset/ironlb-speaker", "daemonset/ironlb-bgpd", "deployment/ironlb-ccm"} {
		kubectl(t, "-n", lab.SystemNamespace, "rollout", "status", "--timeout=180s", workload)
	}
	kubectl(t, "rollout", "status", "--timeout=180s", "deployment/web")
}

func stopKubelet(t *testing.T, owner *lab.Node) {
	if err := owner.StopKubelet(); err != nil {
		t.Fatal(err)
	}
	// Shorter than the node's grace period: Kubernetes removes no endpoint.
	stopped := time.NewTimer(15 * time.Second)
	defer stopped.Stop()
	select {
	case <-stopped.C:
	case <-t.Context().Done():
	}
	if err := owner.StartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func restartContainerd(t *testing.T, owner *lab.Node) {
	if err := owner.Kubelet().RestartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// deletePod deletes the Pod of a DaemonSet on a node and waits for its successor.
func deletePod(t *testing.T, node *lab.Node, daemonSet string) {
	kubectl(t, "-n", lab.SystemNamespace, "delete", "pod", "--selector=app.kubernetes.io/name="+daemonSet,
		"--field-selector=spec.nodeName="+node.Name, "--wait")
	kubectl(t, "-n", lab.SystemNamespace, "rollout", "status", "--timeout=120s", "daemonset/"+daemonSet)
}

func rollOut(t *testing.T, workload string) {
	kubectl(t, "-n", lab.SystemNamespace, "rollout", "restart", workload)
	kubectl(t, "-n", lab.SystemNamespace, "rollout", "status", "--timeout=180s", workload)
}

func drain(t *testing.T, owner *lab.Node) {
	kubectl(t, "drain", owner.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
	kubectl(t, "uncordon", owner.Name)
}

func reboot(t *testing.T, owner *lab.Node) {
	if err := owner.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := owner.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
}
