package proxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// ready returns the ready Pods of a list of endpoints, sorted.
func ready(endpoints []string) []string {
	var pods []string
	for _, e := range endpoints {
		if !strings.Contains(e, "=") {
			pods = append(pods, e)
		}
	}
	slices.Sort(pods)
	return pods
}

// service.go:803, 1020: the client's address that a Pod sees through a ClusterIP.
func TestClusterIP(t *testing.T) {
	svc := service(t, "plain", ofType(corev1.ServiceTypeClusterIP))
	endpoints(t, "plain", "a1", "b1", "c1")
	for _, name := range []string{"a2", "c1"} {
		pod := podMachine(t, name)
		s := answered(t, pod, "tcp", internal(t, svc, httpPort), "a1", "b1", "c1")
		if name == "a2" { // c1 may reach itself
			seen(t, s, pod.Addr)
		}
	}
	for _, n := range cluster.Nodes {
		answered(t, &n.Machine, "tcp", internal(t, svc, httpPort), "a1", "b1", "c1")
		answered(t, &n.Machine, "udp", internal(t, svc, udpPort), "a1", "b1", "c1")
	}
}

// service.go:1313: an externalIP that no node has.
func TestExternalIP(t *testing.T) {
	svc := service(t, "by-hand", ofType(corev1.ServiceTypeClusterIP), func(svc *corev1.Service) {
		svc.Spec.ExternalIPs = []string{"192.0.2.150", "2001:db8:0:1::96"}
	})
	scene.Pair(t, "192.0.2.150", "2001:db8:0:1::96")
	endpoints(t, "by-hand", "a1", "c1")
	to := at(t, "192.0.2.150", httpPort)
	by(t, cluster.Client, to.Addr(), cluster.Node(1))
	answered(t, cluster.Client, "tcp", to, "a1", "c1")
	answered(t, podMachine(t, "b1"), "tcp", to, "a1", "c1")
	answered(t, podMachine(t, "b1"), "tcp", internal(t, svc, httpPort), "a1", "c1")
}

// service.go:2294: a Service of another service proxy.
func TestServiceProxyName(t *testing.T) {
	rare.Test(t)
	svc := service(t, "whose", ofType(corev1.ServiceTypeClusterIP))
	endpoints(t, "whose", "a1", "b1")
	ip, pod := internal(t, svc, httpPort), podMachine(t, "c1")
	mark := func(value string) {
		edit(t, "whose", func(svc *corev1.Service) {
			delete(svc.Labels, "service.kubernetes.io/service-proxy-name")
			if value != "" {
				svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": value}
			}
		})
	}
	answered(t, pod, "tcp", ip, "a1", "b1")
	mark("foreign-owner")
	dropped(t, pod, ip)
	mark("ironlb")
	answered(t, pod, "tcp", ip, "a1", "b1")
	mark("")
	answered(t, pod, "tcp", ip, "a1", "b1")
}

// loadbalancer.go:610.
func TestFinalizer(t *testing.T) {
	rare.Test(t)
	service(t, "finalizer")
	if f := get(t, "finalizer").Finalizers; !slices.Contains(f, "service.kubernetes.io/load-balancer-cleanup") {
		t.Errorf("finalizers %v", f)
	}
	edit(t, "finalizer", func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, ""
	})
	cluster.Await(t, programmed, "the finalizer is gone", func(context.Context) error {
		if f := get(t, "finalizer").Finalizers; len(f) > 0 {
			return fmt.Errorf("finalizers %v", f)
		}
		return nil
	})
}

// A node whose own packet filter drops unknown traffic.
func TestDropPolicies(t *testing.T) {
	for _, variant := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(variant, func(t *testing.T) {
			if variant == "iptables-legacy" {
				rare.Test(t)
			}
			svc := service(t, variant)
			endpoints(t, variant, "a1", "c1")
			vip, node := external(t, svc, httpPort), cluster.Node(0)
			by(t, cluster.Client, vip.Addr(), node)
			answered(t, cluster.Client, "tcp", vip, "a1", "c1")
			closeNode(t, node, variant)
			cluster.Await(t, programmed, "the node lets connections to Services through", func(ctx context.Context) error {
				for _, to := range scene.Each(vip) {
					p := lab.Probe{Network: "tcp", Target: to, Count: perRound, Every: 20 * time.Millisecond, Timeout: 2 * time.Second}
					if s, err := cluster.Client.Ask(ctx, p); err != nil {
						return err
					} else if s.Failed > 0 {
						return fmt.Errorf("%v: %s", to, s)
					}
				}
				return nil
			})
			answered(t, cluster.Client, "tcp", vip, "a1", "c1")
		})
	}
}

// closeNode sets policies of DROP on a node in both families, with rules for its own connections, until the end of the
// test.
func closeNode(t testing.TB, node *lab.Node, iptables string) {
	t.Helper()
	run := func(ctx context.Context, lines ...string) {
		t.Helper()
		for _, program := range []string{iptables, strings.Replace(iptables, "ip", "ip6", 1)} {
			for _, line := range lines {
				if _, err := node.Exec(ctx, append([]string{program, "-w"}, strings.Fields(line)...)...); err != nil {
					t.Error(err)
				}
			}
		}
	}
	t.Cleanup(func() { run(context.Background(), "-P INPUT ACCEPT", "-P FORWARD ACCEPT", "-F INPUT", "-F FORWARD") })
	run(t.Context(), "-A INPUT -i lo -j ACCEPT", "-A INPUT -i api0 -j ACCEPT", "-A INPUT -i pods0 -j ACCEPT",
		"-A INPUT -p ipv6-icmp -j ACCEPT", // for neighbor discovery
		"-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", "-P INPUT DROP", "-P FORWARD DROP")
}
