// Package live tests the chart with Helm 3 and 4 on a real API server, without nodes.
package live

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/deploy/chart"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/manifest"
)

func TestMain(m *testing.M) { rig.Main(m) }

const patience = 4 * time.Minute // other tests run at the same time

// fixture is a rig with one version of Helm.
type fixture struct {
	*testing.T
	*rig.Rig
	ctx     context.Context
	version string
	chart   *chart.Chart
}

func newFixture(t *testing.T, version string) fixture {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute) // other tests run at the same time
	t.Cleanup(cancel)
	c, err := chart.Open(ctx, nil, chart.Versions...)
	if err != nil {
		t.Fatal(err)
	}
	return fixture{t, rig.Start(t, rig.Config{Bare: true}), ctx, version, c}
}

func (f fixture) helm(args ...string) string {
	f.Helper()
	out, err := f.Exec(f.ctx, append([]string{f.chart.Program(f.version), "--namespace", chart.Namespace}, args...)...)
	if err != nil {
		f.Fatalf("helm %s: %v\n%s", args[0], err, out)
	}
	return out
}

func (f fixture) kubectl(args ...string) string {
	f.Helper()
	out, err := f.Kubectl(f.ctx, args...)
	if err != nil {
		f.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// as applies the accounts of a hook. It returns the command of a program that runs as its ServiceAccount, with the
// arguments of the hook's Job.
func (f fixture) as(name string, docs manifest.Documents) []string {
	f.Helper()
	if err := f.Apply(f.ctx, docs.Accounts().String()); err != nil {
		f.Fatal(err)
	}
	kubeconfig, err := f.AccountKubeconfig(f.ctx, chart.Namespace, name)
	if err != nil {
		f.Fatal(err)
	}
	return []string{f.Program("ironlb-ccm"), "--kubeconfig", kubeconfig}
}

const pools = "--set=pools.lan.addresses={192.0.2.0/30},l2Advertisements.lan.ipAddressPools={lan}"

// TestOnePass installs the chart with its first pool, changes and removes values, rolls back and uninstalls. The CRDs,
// the pool and the speakers' key remain those of the first install.
func TestOnePass(t *testing.T) {
	for _, version := range chart.Versions {
		t.Run(version, func(t *testing.T) {
			f := newFixture(t, version)
			path := f.chart.Path()
			f.helm("install", chart.Release, path, "--create-namespace", pools)
			key := f.kubectl("-n", chart.Namespace, "get", "secret", "ironlb-speaker-keys", "-o", "go-template={{.data.keys | base64decode}}")
			if len(key) < 32 {
				t.Errorf("the speakers' key is %q: too short", key)
			}
			uid := func(kind string) string { return f.kubectl("get", kind, "lan", "-o", "jsonpath={.metadata.uid}") }
			pool, advertisement := uid("ippool"), uid("l2adv")

			// Helm waits for the Job of the CRDs, which cannot run without a kubelet: TestCRDs runs it.
			upgrade := []string{"upgrade", chart.Release, path, "--set=crds.upgrade=false"}
			f.helm(append(upgrade, pools, "--set=pools.lan.addresses={192.0.2.0/29}")...)
			f.helm(append(upgrade, "--reset-then-reuse-values", "--set=speaker.minReadySeconds=1")...)
			if have := f.kubectl("get", "ippool", "lan", "-o", "jsonpath={.spec.addresses}"); have != `["192.0.2.0/29"]` {
				t.Errorf("a changed value makes the addresses %s", have)
			}
			f.helm("rollback", chart.Release, "1")
			if have := f.kubectl("get", "ippool", "lan", "-o", "jsonpath={.spec.addresses}"); have != `["192.0.2.0/30"]` {
				t.Errorf("after the rollback the addresses are %s", have)
			}
			f.helm(upgrade...) // without any pool
			f.helm("uninstall", chart.Release, "--no-hooks")
			if have := uid("ippool"); have != pool {
				t.Errorf("the pool has UID %s, had %s", have, pool)
			}
			if have := uid("l2adv"); have != advertisement {
				t.Errorf("the L2Advertisement has UID %s, had %s", have, advertisement)
			}
			f.helm("install", chart.Release, path, pools)
			if have := uid("ippool"); have != pool {
				t.Errorf("after another install the pool has UID %s, had %s", have, pool)
			}
			if have := f.kubectl("-n", chart.Namespace, "get", "secret", "ironlb-speaker-keys", "-o", "go-template={{.data.keys | base64decode}}"); have != key {
				t.Errorf("the speakers' key is %q, was %q", have, key)
			}
		})
	}
}

// TestCRDs runs the Job of an upgrade on older CRDs, with its rights.
func TestCRDs(t *testing.T) {
	f := newFixture(t, chart.Versions[0])
	f.helm("install", chart.Release, f.chart.Path(), "--create-namespace", pools)
	f.kubectl("patch", "crd", "ipaddresspools.ironlb.io", "--type=json", `-p=[{"op":"remove","path":"/spec/names/shortNames"}]`)
	f.kubectl("delete", "crd", "communities.ironlb.io")
	docs, err := f.chart.Template(f.ctx, f.version, chart.Release, chart.Namespace, "--show-only", "templates/hooks/crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	program := f.as("ironlb-crds", docs)
	if out, err := f.Exec(f.ctx, program[0], "crds", program[1], program[2]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if have := f.kubectl("get", "crd", "ipaddresspools.ironlb.io", "-o", "jsonpath={.spec.names.shortNames}"); have != `["ippool"]` {
		t.Errorf("the CRD has the short names %s", have)
	}
	f.kubectl("get", "communities")
	f.kubectl("get", "ipaddresspools", "lan")
}

const cleanupFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// TestUninstall releases the Services of a killed ironlb-ccm, with the rights of the uninstall alone and no other
// IronLB program running.
func TestUninstall(t *testing.T) {
	f := newFixture(t, chart.Versions[len(chart.Versions)-1])
	f.helm("install", chart.Release, f.chart.Path(), "--create-namespace", pools, "--set=pools.lan.addresses={192.0.2.0/29}")
	kubeconfig, err := f.AccountKubeconfig(f.ctx, chart.Namespace, "ironlb-ccm")
	if err != nil {
		t.Fatal(err)
	}
	services := f.Kube.CoreV1().Services("default")
	class := "ironlb.io/lb"
	for _, s := range []corev1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "classed"}, Spec: corev1.ServiceSpec{LoadBalancerClass: &class}},
		{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "pending", Annotations: map[string]string{"ironlb.io/ip-pool": "none"}}},
	} {
		s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeLoadBalancer, []corev1.ServicePort{{Port: 80}}
		if _, err := services.Create(f.ctx, &s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	get := func(name string) *corev1.Service {
		t.Helper()
		s, err := services.Get(f.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	served := func() bool {
		return len(get("plain").Status.LoadBalancer.Ingress) == 1 && len(get("classed").Status.LoadBalancer.Ingress) == 1 &&
			len(get("other").Status.LoadBalancer.Ingress) == 1 && len(get("pending").Status.Conditions) > 0 && len(get("pending").Finalizers) == 0 &&
			strings.Count(f.kubectl("get", "vip", "-o", "name"), "\n") == 2
	}
	ccm, err := f.StartCCMAs(f.ctx, kubeconfig, 20258)
	if err != nil {
		t.Fatal(err)
	}
	eventually.True(f, patience, "the Services are served", served)
	f.followDocuments()
	if err := ccm.Kill(); err != nil {
		t.Fatal(err)
	}
	// Another controller has taken over this Service and added no finalizer of its own.
	f.kubectl("patch", "service", "other", "--subresource=status", "--type=merge", `-p={"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.9"}]}}}`)
	f.helm("uninstall", chart.Release, "--no-hooks")

	docs, err := manifest.Load(f.Root(), chart.UninstallFile)
	if err != nil {
		t.Fatal(err)
	}
	program := f.as("ironlb-uninstall", docs)
	if out, err := f.Exec(f.ctx, program[0], "release", "--timeout=1m", program[1], program[2]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"plain", "classed", "pending"} {
		s := get(name)
		if len(s.Finalizers) > 0 || len(s.Status.LoadBalancer.Ingress) > 0 || len(s.Status.Conditions) > 0 || s.Annotations["ironlb.io/allocated-from"] != "" {
			t.Errorf("Service %s keeps %v %+v %v", name, s.Finalizers, s.Status, s.Annotations)
		}
		if err := services.Delete(f.ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := services.Get(f.ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("Service %s is stuck: %v", name, err)
		}
	}
	other := get("other")
	if !slices.Equal(other.Finalizers, []string{cleanupFinalizer}) || other.Status.LoadBalancer.Ingress[0].IP != "198.51.100.9" || len(other.Status.Conditions) > 0 {
		t.Errorf("Service other, of another controller, has %v %+v", other.Finalizers, other.Status)
	}
	if have := f.kubectl("get", "virtualips,speakerstatuses", "-o", "name"); have != "" {
		t.Errorf("these are left: %s", have)
	}
	f.kubectl("get", "ipaddresspools", "lan")
	if have := f.kubectl("-n", chart.Namespace, "get", "leases", "-o", "name"); have != "" {
		t.Errorf("the Lease is left: %s", have)
	}
}
