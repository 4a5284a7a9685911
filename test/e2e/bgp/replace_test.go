package bgp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/rare"
)

// TestPodReplaced: no route is lost and no request fails when the Pods of the speaker and of ironlb-bgpd on a node are
// replaced at the same time. TestProcessesEnd tests each alone, as in the rollout of one DaemonSet: the speaker changes
// no session, ironlb-bgpd restarts gracefully. test/e2e/installed has real Pods.
func TestPodReplaced(t *testing.T) {
	rare.Test(t)
	before := initial(t)
	n := cluster.Node(1)
	table, answered := still(t, vip), clients(t, vip, tors...)
	again := sync.OnceValue(func() error { return startSpeaker(context.WithoutCancel(t.Context()), n) }) // starts ironlb-bgpd, too
	ends := map[string]func() error{"the speaker": n.StopSpeaker, "ironlb-bgpd": n.StopBGP}
	ended := make(chan error, len(ends))
	for name, end := range ends {
		go func() {
			err := end()
			if err != nil {
				err = fmt.Errorf("end %s: %w", name, err)
			}
			ended <- err
		}()
	}
	var err error
	for range ends {
		err = errors.Join(err, <-ended)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again() })
	asked(t, vip)
	if err := again(); err != nil {
		t.Fatal(err)
	}
	cluster.Await(t, patience, "the node's processes are there", func(ctx context.Context) error {
		_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz")
		return err
	})
	renewed(t, before, n.Name)
	same(t, before, n)
	answered()
	table()
	initial(t)
}

// TestEndpointMoves: with policy Local the endpoint moves from one node to another, and back, as Kubernetes replaces a
// Pod. The new one is ready before the old one terminates, which keeps serving for a while. Clients that connect
// continuously have no failed connection.
func TestEndpointMoves(t *testing.T) {
	before := initial(t)
	local := vip.Next()
	from, to := cluster.Node(1), cluster.Node(2)
	pod(t, from.Name, "moves", from)
	pod(t, to.Name, "moves", to)
	// The test manages the EndpointSlices: a Pod of the lab ends at once when it is deleted.
	manifest := strings.Replace(service("moves", local, vip6.Next(), "externalTrafficPolicy: Local"), "selector: {app: web}", "", 1)
	serve(t, "moves", manifest)
	const ready, going = "ready: true, serving: true, terminating: false", "ready: false, serving: true, terminating: true"
	set := func(conditions map[string]string) {
		t.Helper()
		if err := cluster.ApplyYAML(t.Context(), slice(t, "moves", conditions)); err != nil {
			t.Fatal(err)
		}
	}
	set(map[string]string{from.Name: ready})
	t.Cleanup(func() { end(t, "endpointslice/moves") })
	routed(t, host(local), from.Addr)
	answered := clients(t, local, tors...)
	for range rare.Rounds(2, 6) { // some requests are in progress while FRR's kernel still has the route
		set(map[string]string{from.Name: ready, to.Name: ready})
		routed(t, host(local), cluster.Node(1).Addr, cluster.Node(2).Addr)
		set(map[string]string{from.Name: going, to.Name: ready})
		routed(t, host(local), to.Addr)
		set(map[string]string{to.Name: ready})
		from, to = to, from
	}
	routed(t, host(local), from.Addr)
	answered()
	same(t, before)
}

// slice returns the manifest of an EndpointSlice for IPv4 with these Pods and the conditions of each.
func slice(t *testing.T, service string, pods map[string]string) string {
	t.Helper()
	var endpoints strings.Builder
	for name, conditions := range pods {
		p, err := cluster.WaitPod(t.Context(), "default", name, true)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&endpoints, "\n- {addresses: [%q], nodeName: %s, conditions: {%s}}", p.Status.PodIP, p.Spec.NodeName, conditions)
	}
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: %[2]d, protocol: TCP}, {name: udp, port: %[3]d, protocol: UDP}]
endpoints:%[4]s
`, service, probe.PortHTTP, probe.PortUDP, endpoints.String())
}
