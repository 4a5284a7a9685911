// Package live tests the chart with Helm 3 and 4 on a real API server, without nodes.
package live

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/deploy/chart"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/rare"
)

func TestMain(m *testing.M) { rig.Main(m) }

// world is a rig with one version of Helm.
type world struct {
	*testing.T
	*rig.Rig
	ctx     context.Context
	version string
	chart   *chart.Chart
}

func newWorld(t *testing.T, version string) world {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute) // other tests run at the same time
	t.Cleanup(cancel)
	c, err := chart.Open(ctx, nil, chart.Versions...)
	if err != nil {
		t.Fatal(err)
	}
	return world{t, rig.Start(t, rig.Config{Bare: true}), ctx, version, c}
}

func (w world) helm(args ...string) string {
	w.Helper()
	out, err := w.Exec(w.ctx, append([]string{w.chart.Program(w.version), "--namespace", chart.Namespace}, args...)...)
	if err != nil {
		w.Fatalf("helm %s: %v\n%s", args[0], err, out)
	}
	return out
}

func (w world) kubectl(args ...string) string {
	w.Helper()
	out, err := w.Kubectl(w.ctx, args...)
	if err != nil {
		w.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// as applies the accounts of a hook. It returns the command of a program that runs as its ServiceAccount, with the
// arguments of the hook's Job.
func (w world) as(name string, docs manifest.Documents) []string {
	w.Helper()
	if err := w.Apply(w.ctx, docs.Accounts().String()); err != nil {
		w.Fatal(err)
	}
	kubeconfig, err := w.AccountKubeconfig(w.ctx, chart.Namespace, name)
	if err != nil {
		w.Fatal(err)
	}
	return []string{w.Program("ironlb-ccm"), "--kubeconfig", kubeconfig}
}

const pools = "--set=pools.lan.addresses={192.0.2.0/30},l2Advertisements.lan.ipAddressPools={lan}"

// TestOnePass installs the chart with its first pool, changes and removes values, rolls back and uninstalls. The CRDs,
// the pool and the speakers' key remain those of the first install.
func TestOnePass(t *testing.T) {
	for _, version := range chart.Versions {
		t.Run(version, func(t *testing.T) {
			if version != chart.Versions[len(chart.Versions)-1] {
				rare.Test(t)
			}
			w := newWorld(t, version)
			path := w.chart.Path()
			w.helm("install", chart.Release, path, "--create-namespace", pools)
			key := w.kubectl("-n", chart.Namespace, "get", "secret", "ironlb-speaker-keys", "-o", "go-template={{.data.keys | base64decode}}")
			if len(key) < 32 {
				t.Errorf("the speakers' key is %q: too short", key)
			}
			uid := func(kind string) string { return w.kubectl("get", kind, "lan", "-o", "jsonpath={.metadata.uid}") }
			pool, advertisement := uid("ippool"), uid("l2adv")

			// Helm waits for the Job of the CRDs, which cannot run without a kubelet: TestCRDs runs it.
			upgrade := []string{"upgrade", chart.Release, path, "--set=crds.upgrade=false"}
			w.helm(append(upgrade, pools, "--set=pools.lan.addresses={192.0.2.0/29}")...)
			w.helm(append(upgrade, "--reset-then-reuse-values", "--set=speaker.minReadySeconds=1")...)
			if have := w.kubectl("get", "ippool", "lan", "-o", "jsonpath={.spec.addresses}"); have != `["192.0.2.0/29"]` {
				t.Errorf("a changed value makes the addresses %s", have)
			}
			w.helm("rollback", chart.Release, "1")
			if have := w.kubectl("get", "ippool", "lan", "-o", "jsonpath={.spec.addresses}"); have != `["192.0.2.0/30"]` {
				t.Errorf("after the rollback the addresses are %s", have)
			}
			w.helm(upgrade...) // without any pool
			w.helm("uninstall", chart.Release, "--no-hooks")
			if have := uid("ippool"); have != pool {
				t.Errorf("the pool has UID %s, had %s", have, pool)
			}
			if have := uid("l2adv"); have != advertisement {
				t.Errorf("the L2Advertisement has UID %s, had %s", have, advertisement)
			}
			w.helm("install", chart.Release, path, pools)
			if have := uid("ippool"); have != pool {
				t.Errorf("after another install the pool has UID %s, had %s", have, pool)
			}
			if have := w.kubectl("-n", chart.Namespace, "get", "secret", "ironlb-speaker-keys", "-o", "go-template={{.data.keys | base64decode}}"); have != key {
				t.Errorf("the speakers' key is %q, was %q", have, key)
			}
		})
	}
}

// TestCRDs runs the Job of an upgrade on older CRDs, with its rights.
func TestCRDs(t *testing.T) {
	w := newWorld(t, chart.Versions[0])
	w.helm("install", chart.Release, w.chart.Path(), "--create-namespace", pools)
	w.kubectl("patch", "crd", "ipaddresspools.ironlb.io", "--type=json", `-p=[{"op":"remove","path":"/spec/names/shortNames"}]`)
	w.kubectl("delete", "crd", "communities.ironlb.io")
	docs, err := w.chart.Template(w.ctx, w.version, chart.Release, chart.Namespace, "--show-only", "templates/hooks/crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	program := w.as("ironlb-crds", docs)
	if out, err := w.Exec(w.ctx, program[0], "crds", program[1], program[2]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if have := w.kubectl("get", "crd", "ipaddresspools.ironlb.io", "-o", "jsonpath={.spec.names.shortNames}"); have != `["ippool"]` {
		t.Errorf("the CRD has the short names %s", have)
	}
	w.kubectl("get", "communities")
	w.kubectl("get", "ipaddresspools", "lan")
}

const cleanupFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// TestUninstall releases the Services of a killed ironlb-ccm, with the rights of the uninstall alone and no other
// IronLB program running.
func TestUninstall(t *testing.T) {
	w := newWorld(t, chart.Versions[1])
	w.helm("install", chart.Release, w.chart.Path(), "--create-namespace", pools, "--set=pools.lan.addresses={192.0.2.0/29}")
	kubeconfig, err := w.AccountKubeconfig(w.ctx, chart.Namespace, "ironlb-ccm")
	if err != nil {
		t.Fatal(err)
	}
	services := w.Kube.CoreV1().Services("default")
	class := "ironlb.io/lb"
	for _, s := range []corev1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "classed"}, Spec: corev1.ServiceSpec{LoadBalancerClass: &class}},
		{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "pending", Annotations: map[string]string{"ironlb.io/ip-pool": "none"}}},
	} {
		s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeLoadBalancer, []corev1.ServicePort{{Port: 80}}
		if _, err := services.Create(w.ctx, &s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	get := func(name string) *corev1.Service {
		t.Helper()
		s, err := services.Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	served := func() bool {
		return len(get("plain").Status.LoadBalancer.Ingress) == 1 && len(get("classed").Status.LoadBalancer.Ingress) == 1 &&
			len(get("other").Status.LoadBalancer.Ingress) == 1 && len(get("pending").Status.Conditions) > 0 && len(get("pending").Finalizers) == 0 &&
			strings.Count(w.kubectl("get", "vip", "-o", "name"), "\n") == 2
	}
	ccm, err := w.StartCCMAs(w.ctx, kubeconfig, 20258)
	if err != nil {
		t.Fatal(err)
	}
	w.until("the Services are served", served)
	w.followDocuments()
	if err := ccm.Kill(); err != nil {
		t.Fatal(err)
	}
	// Another controller has taken over this Service and added no finalizer of its own.
	w.kubectl("patch", "service", "other", "--subresource=status", "--type=merge", `-p={"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.9"}]}}}`)
	w.helm("uninstall", chart.Release, "--no-hooks")

	docs, err := manifest.Load(w.Root(), chart.UninstallFile)
	if err != nil {
		t.Fatal(err)
	}
	program := w.as("ironlb-uninstall", docs)
	if out, err := w.Exec(w.ctx, program[0], "release", "--timeout=1m", program[1], program[2]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"plain", "classed", "pending"} {
		s := get(name)
		if len(s.Finalizers) > 0 || len(s.Status.LoadBalancer.Ingress) > 0 || len(s.Status.Conditions) > 0 || s.Annotations["ironlb.io/allocated-from"] != "" {
			t.Errorf("Service %s keeps %v %+v %v", name, s.Finalizers, s.Status, s.Annotations)
		}
		if err := services.Delete(w.ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := services.Get(w.ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("Service %s is stuck: %v", name, err)
		}
	}
	other := get("other")
	if !slices.Equal(other.Finalizers, []string{cleanupFinalizer}) || other.Status.LoadBalancer.Ingress[0].IP != "198.51.100.9" || len(other.Status.Conditions) > 0 {
		t.Errorf("Service other, of another controller, has %v %+v", other.Finalizers, other.Status)
	}
	if have := w.kubectl("get", "virtualips,speakerstatuses", "-o", "name"); have != "" {
		t.Errorf("these are left: %s", have)
	}
	w.kubectl("get", "ipaddresspools", "lan")
	if have := w.kubectl("-n", chart.Namespace, "get", "leases", "-o", "name"); have != "" {
		t.Errorf("the Lease is left: %s", have)
	}
}

// until polls until done, or fails when the context ends.
func (w world) until(what string, done func() bool) {
	w.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-w.ctx.Done():
			w.Fatalf("%s: not in time: %v", what, fmt.Sprint(context.Cause(w.ctx)))
		case <-ticker.C:
		}
	}
}
