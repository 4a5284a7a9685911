package installed

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// cleanupImage is the image of the cluster's kube-proxy, as a value of the chart.
const cleanupImage = ",kubeProxyCleanup.image=localhost/lab/kube-proxy:1"

// TestKubeProxyReplaced: as docs/tasks/kube-proxy.md has it, serviceProxy replaces kube-proxy, and the chart's cleanup
// removes its rules from each node. It is refused while kube-proxy runs. Services are served before and after.
func TestKubeProxyReplaced(t *testing.T) {
	rare.Test(t)
	cluster.Need(t)
	service := serve(t)
	owner := ownerOf(t, service.Addr())
	replace := fmt.Sprintf("serviceProxy=true,apiServer.host=%s,apiServer.port=6443", cluster.Management.Addr)
	install := func(values string) error {
		return cluster.Install(context.WithoutCancel(t.Context()), "--values", "test/lab/demo/values.yaml", "--set", "speaker.minReadySeconds=0,bgpd.minReadySeconds=0",
			"--set", values)
	}
	if err := install(replace + cleanupImage); err == nil || !strings.Contains(err.Error(), "kube-proxy runs on 3 nodes") {
		t.Errorf("a cleanup while kube-proxy runs: %v", err)
	}
	if err := install(replace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, args := range [][]string{
			{"-n", "kube-system", "patch", "daemonset", "kube-proxy", "--type", "merge", "-p", kubeProxyOn("null")},
			{"-n", "kube-system", "rollout", "status", "--timeout=120s", "daemonset/kube-proxy"},
		} {
			if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), args...); err != nil {
				t.Error(err)
			}
		}
		if err := start(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, "-n", "kube-system", "patch", "daemonset", "kube-proxy", "--type", "merge", "-p", kubeProxyOn(`"yes"`))
	kubectl(t, "-n", "kube-system", "wait", "--for=delete", "--timeout=120s", "pod", "-l", "k8s-app=kube-proxy")
	served(t, service)
	for _, n := range cluster.Nodes {
		if !strings.Contains(tables(t, n), "kube-proxy") {
			t.Errorf("%s has nothing of kube-proxy: there is nothing to clean", n.Name)
		}
	}
	conflict(t, service.Addr(), owner, "KubeProxyResidualRules")

	if err := install(replace + cleanupImage); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "-n", lab.SystemNamespace, "rollout", "status", "--timeout=120s", "daemonset/ironlb-kube-proxy-cleanup")
	for _, n := range cluster.Nodes {
		if have := tables(t, n); strings.Contains(have, "kube-proxy") || !strings.Contains(have, "table ip ironlb") {
			t.Errorf("%s has the tables\n%s", n.Name, have)
		}
	}
	served(t, service)
	conflict(t, service.Addr(), owner, "")

	if err := install(replace); err != nil {
		t.Fatal(err)
	}
	cluster.Await(t, time.Minute, "the cleanup to be gone", func(ctx context.Context) error {
		left, err := cluster.Kubectl(ctx, "-n", lab.SystemNamespace, "get", "daemonset,pod", "-l", "app.kubernetes.io/name=ironlb-kube-proxy-cleanup", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("there are %s", left)
		}
		return err
	})
	served(t, service)
}

// kubeProxyOn is a patch of kube-proxy's node selector.
func kubeProxyOn(value string) string {
	return `{"spec":{"template":{"spec":{"nodeSelector":{"ironlb.io/kube-proxy":` + value + `}}}}}`
}

func tables(t *testing.T, n *lab.Node) string {
	t.Helper()
	out, err := n.Kubelet().Exec(t.Context(), "nft", "list", "tables")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// served checks that Service web answers at its address and, from each node, at its ClusterIP.
func served(t *testing.T, service netip.AddrPort) {
	t.Helper()
	web, err := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	internal := netip.AddrPortFrom(netip.MustParseAddr(web.Spec.ClusterIP), service.Port())
	for range 5 {
		if name := get(t, cluster.Client, service); !strings.HasPrefix(name, "web-") {
			t.Errorf("%v: answer of %q", service, name)
		}
		for _, n := range cluster.Nodes {
			if name := get(t, &n.Machine, internal); !strings.HasPrefix(name, "web-") {
				t.Errorf("%v from %s: answer of %q", internal, n.Name, name)
			}
		}
	}
}

// conflict waits until the owner reports a problem with kube-proxy; an empty reason is none.
func conflict(t *testing.T, addr netip.Addr, owner *lab.Node, reason string) {
	t.Helper()
	cluster.Await(t, 2*time.Minute, fmt.Sprintf("problem %q with kube-proxy on %s", reason, owner.Name), func(ctx context.Context) error {
		var vip v1alpha1.VirtualIP
		if err := cluster.Objects.Get(ctx, types.NamespacedName{Name: addr.String()}, &vip); err != nil {
			return err
		}
		have := ""
		for _, c := range vip.Status.Conditions {
			if c.Type == v1alpha1.ConditionKubeProxyConflict && c.Status == metav1.ConditionTrue {
				have = c.Reason
			}
		}
		if have != reason {
			return fmt.Errorf("it is %q of %s", have, vip.Status.Node)
		}
		return nil
	})
}
