package installed

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
)

// TestUninstall: an uninstall leaves no Service blocked by a finalizer and nothing on the nodes. It keeps the pool, and
// can be reverted.
func TestUninstall(t *testing.T) {
	cluster.Need(t)
	service := serve(t)
	ownerOf(t, service.Addr())
	kubectl(t, "annotate", "service", "web", v1alpha1.AnnotationForwarding+"=direct")
	for _, n := range cluster.Nodes {
		cluster.Await(t, time.Minute, "each kind of trace on "+n.Name+" while it serves", func(context.Context) error {
			return traced(traces(t, n))
		})
	}
	if _, err := cluster.Helm(t.Context(), "uninstall", lab.Release, "--namespace", lab.SystemNamespace, "--wait", "--timeout", "5m"); err != nil {
		t.Fatal(err)
	}
	s, err := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Finalizers) > 0 || len(s.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("Service has finalizers %v and addresses %v", s.Finalizers, s.Status.LoadBalancer.Ingress)
	}
	for _, n := range cluster.Nodes {
		for _, lines := range traces(t, n) {
			if len(lines) > 0 {
				t.Errorf("%s has %q", n.Name, lines)
			}
		}
	}
	cluster.Await(t, 30*time.Second, "the namespace to be empty", func(context.Context) error {
		pods := kubectl(t, "-n", lab.SystemNamespace, "get", "pods,jobs,daemonsets,deployments", "-o", "name")
		if strings.TrimSpace(pods) != "" {
			return fmt.Errorf("there are:\n%s", pods)
		}
		return nil
	})
	var pools v1alpha1.IPAddressPoolList
	if err := cluster.Objects.List(t.Context(), &pools); err != nil || len(pools.Items) != 1 {
		t.Errorf("have %d pools, want the one of the values: %v", len(pools.Items), err)
	}
	kubectl(t, "delete", "service", "web")
	cluster.Await(t, 30*time.Second, "Service web to be gone", func(ctx context.Context) error {
		_, err := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "web", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
	if err := start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := serve(t); again != service {
		t.Errorf("installed again, the Service has %s, want %s", again, service)
	}
	ownerOf(t, service.Addr())
}

// traces lists IronLB's state on a node: tables of nftables, local routes, addresses, tunnels, processes and files.
func traces(t *testing.T, n *lab.Node) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for pattern, argv := range map[string][]string{
		"table ":      {"sh", "-c", "nft list tables | grep ironlb || true"},
		"192.0.2.128": {"sh", "-c", "ip -o route show table local; ip -o address"},
		"/ironlb":     {"sh", "-c", "ls -d /var/lib/ironlb /run/ironlb 2>/dev/null || true"},
		"ironlb-t":    {"ip", "-o", "link"},
		"ironlb-":     {"sh", "-c", "ps -eo comm | grep ironlb || true"},
	} {
		out, err := n.Kubelet().Exec(t.Context(), argv...)
		if err != nil {
			t.Fatal(err)
		}
		found[pattern] = nil
		for line := range strings.Lines(out) {
			if strings.Contains(line, pattern) {
				found[pattern] = append(found[pattern], strings.TrimSpace(line))
			}
		}
	}
	return found
}

// traced returns an error unless there is a trace of each kind: without one, a test does not detect what is left.
func traced(traces map[string][]string) error {
	for pattern, lines := range traces {
		if len(lines) == 0 {
			return fmt.Errorf("nothing has %q", pattern)
		}
	}
	return nil
}
