package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ironlb/ironlb/test/lab/probe"
)

var cluster *Cluster

func TestMain(m *testing.M) {
	if os.Getenv(abandonEnv) != "" {
		abandon()
	}
	// IRONLB_LAB_KERNEL=native is faster on a machine without IPVS: these tests do not need it.
	Main(m, Config{Bare: true, Kernel: Kernel(os.Getenv("IRONLB_LAB_KERNEL"))}, func(_ context.Context, c *Cluster) error {
		cluster = c
		return nil
	})
}

// web creates a Service with a Pod on each of the first two nodes, once.
func web(t *testing.T) []*corev1.Pod {
	t.Helper()
	ctx := t.Context()
	labels := map[string]string{"app": t.Name()}
	name := strings.ToLower(t.Name())
	var pods []*corev1.Pod
	for i := range 2 {
		pod, err := cluster.AddPod(ctx, PodSpec{Name: fmt.Sprintf("%s-%d", name, i+1), Node: cluster.Node(i), Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod)
		t.Cleanup(func() {
			if err := cluster.RemovePod(context.Background(), "default", pod.Name); err != nil {
				t.Error(err)
			}
		})
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: labels,
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(probe.PortHTTP)}},
		},
	}
	services := cluster.Kube.CoreV1().Services("default")
	if _, err := services.Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := services.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return pods
}

// endpoints returns the addresses of a Service with their readiness.
func endpoints(ctx context.Context, service string) (map[string]bool, error) {
	list, err := cluster.Kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil, err
	}
	ready := map[string]bool{}
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			ready[e.Addresses[0]] = *e.Conditions.Ready
		}
	}
	return ready, nil
}

func TestEndpointSlices(t *testing.T) {
	cluster.Need(t)
	pods := web(t)
	want := func(what string, ready1, ready2 bool) {
		t.Helper()
		err := cluster.Eventually(t.Context(), 20*time.Second, what, func(ctx context.Context) error {
			have, err := endpoints(ctx, "testendpointslices")
			if err != nil {
				return err
			}
			if len(have) != 2 || have[pods[0].Status.PodIP] != ready1 || have[pods[1].Status.PodIP] != ready2 {
				return fmt.Errorf("have %v", have)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	want("both endpoints ready", true, true)
	if err := cluster.SetPodReady(t.Context(), "default", pods[0].Name, false); err != nil {
		t.Error(err)
	}
	want("the first endpoint not ready", false, true)
}

func target(t *testing.T, addr string, port uint16) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(a, port)
}

// Pods are reachable from everywhere, and see the client's address.
func TestReach(t *testing.T) {
	cluster.Need(t)
	pods := web(t)
	first, err := cluster.PodMachine("default", pods[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []*Machine{&cluster.Node(1).Machine, first, &cluster.Node(2).Machine} {
		for _, network := range []string{"tcp", "udp", "stream"} {
			port := map[string]uint16{"tcp": probe.PortHTTP, "udp": probe.PortUDP, "stream": probe.PortStream}[network]
			s, err := from.Ask(t.Context(), Probe{
				Network: network, Target: target(t, pods[1].Status.PodIP, port), Count: 3, Every: 10 * time.Millisecond, Timeout: 5 * time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			if s.Failed != 0 || s.ByPod[pods[1].Name] != 3 {
				t.Errorf("%s from %s: %s", network, from.Name, s)
			}
			if from == first && s.Clients[pods[0].Status.PodIP] != 3 {
				t.Errorf("%s from %s is seen as %v", network, from.Name, s.Clients)
			}
		}
	}
	for _, from := range []*Machine{cluster.Client, cluster.Remote, cluster.Router} {
		for _, addr := range []netip.Addr{cluster.Node(0).Addr, cluster.Node(0).Addr6} {
			if _, err := from.Exec(t.Context(), "ping", "-c1", "-W5", addr.String()); err != nil {
				t.Error(err)
			}
		}
	}
	s, err := first.Ask(t.Context(), Probe{
		Network: "tcp", Target: target(t, pods[1].Status.PodIPs[1].IP, probe.PortHTTP), Count: 3, Every: 10 * time.Millisecond, Timeout: 5 * time.Second,
	})
	if err != nil || s.Failed != 0 || s.Clients[first.Addr6.String()] != 3 {
		t.Errorf("over IPv6: %s, %v", s, err)
	}
}

// pings waits until the client reaches a node, or no longer does.
func pings(t *testing.T, n *Node, want bool) {
	t.Helper()
	err := cluster.Eventually(t.Context(), 30*time.Second, fmt.Sprintf("client reaches %s: %t", n.Name, want), func(ctx context.Context) error {
		_, err := cluster.Client.Exec(ctx, "ping", "-c1", "-W1", n.Addr.String())
		if (err == nil) != want {
			return fmt.Errorf("ping: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestCutLAN(t *testing.T) {
	cluster.Need(t)
	ctx, n := t.Context(), cluster.Node(0)
	carrier := func(want string) {
		t.Helper()
		if out, err := n.Exec(ctx, "cat", "/sys/class/net/eth0/carrier"); err != nil || strings.TrimSpace(out) != want {
			t.Errorf("carrier %q, want %q: %v", out, want, err)
		}
	}
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pings(t, n, true)
	step(n.CutLAN(ctx))
	pings(t, n, false)
	carrier("1")
	step(n.WaitReady(ctx, time.Second, corev1.ConditionTrue)) // its API link is up
	step(n.RestoreLAN(ctx))
	pings(t, n, true)
	step(n.LinkDown(ctx))
	pings(t, n, false)
	carrier("0")
	step(n.LinkUp(ctx))
	pings(t, n, true)
}

func TestCutAPI(t *testing.T) {
	cluster.Need(t)
	ctx, n := t.Context(), cluster.Node(1)
	if err := n.CutAPI(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, 30*time.Second, corev1.ConditionUnknown); err != nil {
		t.Error(err)
	}
	pings(t, n, true)
	if err := n.RestoreAPI(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, 30*time.Second, corev1.ConditionTrue); err != nil {
		t.Error(err)
	}
}

func TestKubeletStop(t *testing.T) {
	cluster.Need(t)
	ctx, n := t.Context(), cluster.Node(2)
	if err := n.StopKubelet(); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, 30*time.Second, corev1.ConditionUnknown); err != nil {
		t.Error(err)
	}
	if err := n.StartKubelet(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, 30*time.Second, corev1.ConditionTrue); err != nil {
		t.Error(err)
	}
}

// A node without power is unreachable for clients and the API server, and so are its Pods. After power-on, nothing of
// its previous kernel state is left.
func TestPower(t *testing.T) {
	cluster.Need(t)
	pods := web(t)
	ctx, n := t.Context(), cluster.Node(1)
	if _, err := n.Exec(ctx, "ip", "route", "add", "192.0.2.130/32", "dev", "lo"); err != nil {
		t.Fatal(err)
	}
	ready := func(want bool) {
		t.Helper()
		err := cluster.Eventually(ctx, 40*time.Second, fmt.Sprintf("endpoint on %s ready: %t", n.Name, want), func(ctx context.Context) error {
			have, err := endpoints(ctx, "testpower")
			if err == nil && have[pods[1].Status.PodIP] != want {
				err = fmt.Errorf("have %v", have)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	ready(true)
	if err := n.PowerOff(ctx); err != nil {
		t.Fatal(err)
	}
	pings(t, n, false)
	if pids, err := n.Exec(ctx, "ip", "netns", "pids", n.Namespace); err != nil || strings.Contains(pids, "\n") && len(strings.Fields(pids)) > 1 {
		t.Errorf("processes on a node without power: %q %v", pids, err)
	}
	if err := n.WaitReady(ctx, 30*time.Second, corev1.ConditionUnknown); err != nil {
		t.Error(err)
	}
	ready(false)

	if err := n.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	pings(t, n, true)
	if err := n.WaitReady(ctx, 30*time.Second, corev1.ConditionTrue); err != nil {
		t.Error(err)
	}
	ready(true)
	if out, err := n.Exec(ctx, "ip", "route", "show", "192.0.2.130/32"); err != nil || out != "" {
		t.Errorf("a route outlived the power: %q %v", out, err)
	}
	if err := errors.Join(cluster.Err()); err != nil {
		t.Error(err)
	}
}

// The probers detect an outage, and a broken connection.
func TestProbers(t *testing.T) {
	cluster.Need(t)
	pods := web(t)
	ctx, from, far := t.Context(), cluster.Node(0), cluster.Node(1)
	steady, err := from.StartProbe(ctx, Probe{Network: "tcp", Target: target(t, pods[1].Status.PodIP, probe.PortHTTP)})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := from.StartProbe(ctx, Probe{Network: "stream", Target: target(t, pods[1].Status.PodIP, probe.PortStream), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Prober{steady, stream} {
		if err := p.WaitAnswers(ctx, 30*time.Second, 3); err != nil {
			t.Fatal(err)
		}
	}
	if err := far.CutLAN(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := steady.Wait(ctx, 30*time.Second, "failures", func(s probe.Summary) bool { return s.Failed >= 5 }); err != nil {
		t.Error(err)
	}
	err = cluster.Eventually(ctx, 30*time.Second, "the stream to break", func(context.Context) error {
		if stream.Broken() == nil {
			return errors.New("it has not")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := far.RestoreLAN(ctx); err != nil {
		t.Fatal(err)
	}
	if err := steady.WaitAnswers(ctx, 30*time.Second, 3); err != nil {
		t.Error(err)
	}
	s, err := steady.Stop()
	if err != nil || s.Failed < 5 || s.Outage < time.Second {
		t.Errorf("summary of an outage: %s %v", s, err)
	}
	if s, err := stream.Stop(); err == nil || s.Failed != 1 {
		t.Errorf("summary of a broken stream: %s %v", s, err)
	}
}
