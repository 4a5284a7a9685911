package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the expected results in testdata")

// runBoth returns standard output, standard error and the exit code of the command.
func runBoth(t *testing.T, cl client.Client, args ...string) (out, errs string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := command(func(*genericclioptions.ConfigFlags) (client.Client, error) {
		if cl == nil {
			t.Error("the command needs a cluster")
		}
		return cl, nil
	}, func() time.Time { return now })
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(args)
	code = exitCode(&stderr, cmd.ExecuteContext(context.Background()))
	return stdout.String(), stderr.String(), code
}

// TestImportMetalLB: objects and table for every kind and field of MetalLB. The objects are valid, and the same when
// they are converted from a cluster.
func TestImportMetalLB(t *testing.T) {
	for name, code := range map[string]int{"kept": 0, "changed": 0, "refused": exitProblems} {
		path := filepath.Join("testdata", "metallb", name)
		out, table, got := runBoth(t, nil, "import", "metallb", "-f", path+".yaml")
		if got != code {
			t.Errorf("%s: exit code %d, want %d", name, got, code)
		}
		for file, text := range map[string]string{path + ".objects": out, path + ".table": table} {
			if *update {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, file, text, string(want))
		}
		if out, _, got := runBoth(t, nil, "validate", "-f", path+".objects"); got == exitError {
			t.Errorf("%s: %s", name, out)
		}
		if only, _, _ := runBoth(t, nil, "import", "metallb", "-o", "table", "-f", path+".yaml"); only != table {
			t.Errorf("%s: -o table prints\n%s", name, only)
		}
	}
}

// TestImportRefusesInput: the errors of input that is no configuration of MetalLB name the fix.
func TestImportRefusesInput(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"{apiVersion: v1, kind: ConfigMap, metadata: {namespace: metallb-system, name: config}, data: {config: x}}": "" +
			"ConfigMap metallb-system/config is the configuration of MetalLB before 0.13",
		"{apiVersion: metallb.io/v1beta1, kind: AddressPool, metadata: {name: old}}": "AddressPool old is of MetalLB before 0.13",
		"{apiVersion: metallb.io/v1, kind: BGPPeer, metadata: {name: new}}":          "BGPPeer new: apiVersion metallb.io/v1 is unknown: write metallb.io/v1beta2",
		"{apiVersion: metallb.io/v1beta1, kind: BGPPeer}":                            "a BGPPeer has no metadata.name",
		"a: 1\na: 2": `key "a" already set`,
		"{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {ports: 1}}": "Service /x",
	} {
		file := filepath.Join(dir, "input.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := runBoth(t, nil, "import", "metallb", "-f", file); code != exitError || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s, want %s", text, code, errs, want)
		}
	}
	for args, want := range map[string]string{
		"-o json -f x":           "-o json: write yaml or table",
		"--apply":                "--record is missing",
		"--apply --check":        "none of the others can be",
		"-f /does/not/exist":     "no such file",
		"--check --record /none": "reading the record",
		"":                       "namespace metallb-system has no objects of metallb.io",
	} {
		_, errs, code := runBoth(t, cluster(), append([]string{"import", "metallb"}, strings.Fields(args)...)...)
		if code != exitError || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s, want %s", args, code, errs, want)
		}
	}
}

// migrating is a cluster of MetalLB: a controller, a speaker, objects, and Services.
type migrating struct {
	t      *testing.T
	cl     client.WithWatch
	record string
}

func theirs(kind, name string, spec map[string]any) *unstructured.Unstructured {
	version := "v1beta1"
	if kind == "BGPPeer" {
		version = "v1beta2"
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/" + version, "kind": kind,
		"metadata": map[string]any{"namespace": "metallb-system", "name": name}, "spec": spec,
	}}
}

func metallbPod(component string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: component + "-x", Labels: map[string]string{"app": "metallb", "component": component}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func shown(name string, addresses ...string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	svc.Annotations = map[string]string{"metallb.io/ip-allocated-from-pool": "lan"}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	for _, a := range addresses {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a, IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
	}
	return svc
}

func startMigration(t *testing.T, more ...client.Object) *migrating {
	t.Helper()
	legacy := shown("legacy", "192.0.2.2")
	legacy.Annotations["metallb.universe.tf/allow-shared-ip"] = "k"
	objects := append([]client.Object{
		metallbPod("controller"), metallbPod("speaker"), shown("web", "192.0.2.1", "2001:db8::1"), legacy,
		theirs("IPAddressPool", "lan", map[string]any{"addresses": []any{"192.0.2.0/28", "2001:db8::/124"}}),
		theirs("L2Advertisement", "lan", map[string]any{}),
		theirs("BGPPeer", "tor", map[string]any{
			"myASN": int64(64512), "peerASN": int64(64513), "peerAddress": "198.51.100.1", "passwordSecret": map[string]any{"name": "tor"},
		}),
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "tor"},
			Data:       map[string][]byte{"password": []byte("x"), "other": []byte("y")},
		},
		theirs("BGPAdvertisement", "lan", map[string]any{}),
	}, more...)
	// The fake client does not know dry runs.
	cl := interceptor.NewClient(cluster(objects...), interceptor.Funcs{
		Apply: func(ctx context.Context, cl client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if (&client.ApplyOptions{}).ApplyOptions(opts).DryRun != nil {
				return nil
			}
			return cl.Apply(ctx, o, opts...)
		},
	})
	return &migrating{t: t, cl: cl, record: filepath.Join(t.TempDir(), "record")}
}

func (m *migrating) run(args ...string) (out, errs string, code int) {
	m.t.Helper()
	return runBoth(m.t, m.cl, append([]string{"import", "metallb", "--record", m.record}, args...)...)
}

func (m *migrating) remove(component string) {
	m.t.Helper()
	if err := m.cl.Delete(m.t.Context(), metallbPod(component)); err != nil {
		m.t.Fatal(err)
	}
}

// adopt does what ironlb-ccm does once a pool has the addresses.
func (m *migrating) adopt(name, record string) {
	m.t.Helper()
	svc := &corev1.Service{}
	if err := m.cl.Get(m.t.Context(), client.ObjectKey{Namespace: "shop", Name: name}, svc); err != nil {
		m.t.Fatal(err)
	}
	svc.Status.Conditions = []metav1.Condition{
		conditionOf(v1alpha1.ConditionAllocated, "True", "Allocated", ""), conditionOf(v1alpha1.ConditionAddresses, "True", "Recorded", record),
	}
	for i := range svc.Status.LoadBalancer.Ingress {
		svc.Status.LoadBalancer.Ingress[i].IPMode = ptr.To(corev1.LoadBalancerIPModeProxy)
	}
	if err := m.cl.Status().Update(m.t.Context(), svc); err != nil {
		m.t.Fatal(err)
	}
}

// ours counts IronLB's objects of a kind.
func (m *migrating) ours(kind string) int {
	m.t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
	if err := m.cl.List(m.t.Context(), list); err != nil {
		m.t.Fatal(err)
	}
	return len(list.Items)
}

func (m *migrating) expect(what string, pools, peers, l2 int) {
	m.t.Helper()
	if got, want := fmt.Sprint(m.ours("IPAddressPool"), m.ours("BGPPeer"), m.ours("L2Advertisement")), fmt.Sprint(pools, peers, l2); got != want {
		m.t.Errorf("%s: pools, peers, advertisements: %s, want %s", what, got, want)
	}
}

// autoAssign returns that of the pool.
func (m *migrating) autoAssign() bool {
	m.t.Helper()
	pool := &v1alpha1.IPAddressPool{}
	if err := m.cl.Get(m.t.Context(), client.ObjectKey{Name: "lan"}, pool); err != nil {
		m.t.Fatal(err)
	}
	return pool.Spec.AutoAssign == nil || *pool.Spec.AutoAssign
}

// TestMigration: every step waits for what must precede it, and can be repeated.
func TestMigration(t *testing.T) {
	m := startMigration(t)
	_, errs, code := m.run("--apply")
	if want := "kubectl -n metallb-system scale deployment controller --replicas=0"; code != exitError || !strings.Contains(errs, want) {
		t.Errorf("with MetalLB's controller: exit code %d, %s", code, errs)
	}
	m.expect("with MetalLB's controller", 0, 0, 0)
	if _, err := os.Stat(m.record); err == nil {
		t.Error("a record is written before anything is applied")
	}

	m.remove("controller")
	_, errs, code = m.run("--apply", "--wait", "1ms")
	if want := "Not adopted: shop/legacy (no record), shop/web (no record)"; code != exitError || !strings.Contains(errs, want) {
		t.Errorf("without ironlb-ccm: exit code %d, %s", code, errs)
	}
	m.expect("before the adoption", 1, 0, 0)
	if m.autoAssign() {
		t.Error("the pool assigns addresses before the Services are adopted")
	}
	svc := &corev1.Service{}
	if err := m.cl.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "legacy"}, svc); err != nil || svc.Annotations["ironlb.io/sharing-key"] != "k" {
		t.Errorf("the annotations of shop/legacy are %v, %v", svc.Annotations, err)
	}

	m.adopt("web", "192.0.2.1=lan,2001:db8::1=lan")
	m.adopt("legacy", "192.0.2.2=lan")
	_, errs, code = m.run("--apply", "--wait", "1ms")
	if want := "waiting for the end of MetalLB's speakers (Pod speaker-x)"; code != exitError || !strings.Contains(errs, want) {
		t.Errorf("with MetalLB's speakers: exit code %d, %s", code, errs)
	}
	m.expect("with MetalLB's speakers", 1, 0, 0)
	if !m.autoAssign() {
		t.Error("the pool assigns no addresses once the Services are adopted")
	}

	m.remove("speaker")
	out, errs, code := m.run("--apply", "--wait", "10s")
	if want := "2 of 2 Services have the addresses that they had before\n"; code != 0 || out != want {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	m.expect("at the end", 1, 1, 1)
	secret := &corev1.Secret{}
	err := m.cl.Get(t.Context(), client.ObjectKey{Namespace: "ironlb-bgp", Name: "tor"}, secret)
	if err != nil || len(secret.Data) != 1 || string(secret.Data["password"]) != "x" {
		t.Errorf("the copied Secret is %v, %v", secret, err)
	}

	// Back.
	if _, errs, code := m.run("--undo", "--wait", "1ms"); code != exitError || !strings.Contains(errs, "waiting for MetalLB's speakers") {
		t.Errorf("undo without MetalLB's speakers: exit code %d, %s", code, errs)
	}
	m.expect("undo without MetalLB's speakers", 1, 1, 1)
	starting := metallbPod("speaker")
	starting.Status.Conditions = nil
	if err := m.cl.Create(t.Context(), starting); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := m.run("--undo", "--wait", "1ms"); code != exitError || !strings.Contains(errs, "waiting for MetalLB's speakers") {
		t.Errorf("undo while MetalLB's speakers start: exit code %d, %s", code, errs)
	}
	m.expect("undo while MetalLB's speakers start", 1, 0, 1)
	starting.Status = metallbPod("speaker").Status
	if err := m.cl.Status().Update(t.Context(), starting); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := m.run("--undo", "--wait", "10s"); code != 0 {
		t.Errorf("undo: exit code %d, %s%s", code, out, errs)
	}
	m.expect("undo", 0, 0, 0)
	if err := m.cl.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, svc); err != nil {
		t.Fatal(err)
	}
	if len(svc.Status.Conditions) > 0 || len(svc.Status.LoadBalancer.Ingress) != 2 || *svc.Status.LoadBalancer.Ingress[0].IPMode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("undo: the status of shop/web is %+v", svc.Status)
	}
}

// TestCheck: each difference is named.
func TestCheck(t *testing.T) {
	m := startMigration(t)
	if err := os.WriteFile(m.record, []byte(`{services: [{namespace: shop, name: web, addresses: ["2001:db8::1", 192.0.2.1]},
		{namespace: shop, name: legacy, addresses: [192.0.2.9]}, {namespace: shop, name: deleted, addresses: [192.0.2.8]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, code := m.run("--check")
	expect(t, "check", out, `
Service shop/legacy: 192.0.2.9 before, now 192.0.2.2
Service shop/deleted: 192.0.2.8 before, the Service does not exist any more
1 of 3 Services have the addresses that they had before`)
	if code != exitProblems {
		t.Errorf("exit code %d", code)
	}
}

// TestApplyRefuses: with a refused row nothing is applied, unless that is forced.
func TestApplyRefuses(t *testing.T) {
	classed := shown("classed", "192.0.2.3")
	classed.Spec.LoadBalancerClass = ptr.To("metallb.example/lb")
	m := startMigration(t, classed, theirs("BGPAdvertisement", "long", map[string]any{"asPathPrepend": int64(3)}))
	m.remove("controller")
	if _, errs, code := m.run("--apply"); code != exitProblems || !strings.Contains(errs, "1 rows are refused, so nothing is applied") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	m.expect("refused", 0, 0, 0)
	_, errs, code := m.run("--apply", "--force", "--wait", "1ms")
	if code != exitError || !strings.Contains(errs, "Not adopted") || !strings.Contains(errs, "--set loadBalancerClass=metallb.example/lb\n") {
		t.Errorf("forced: exit code %d, %s", code, errs)
	}
	m.expect("forced", 1, 0, 0)

	ccm := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: "ironlb-ccm"}}
	if err := m.cl.Create(t.Context(), ccm); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := m.run("--undo"); code != exitError || !strings.Contains(errs, "kubectl -n ironlb-system scale deployment ironlb-ccm --replicas=0") {
		t.Errorf("undo with ironlb-ccm: exit code %d, %s", code, errs)
	}
	m.expect("undo with ironlb-ccm", 1, 0, 0)
}

// The class decides which Services are moved: without the right to read it, nothing is converted for the cluster.
func TestImportNeedsTheClass(t *testing.T) {
	cl := interceptor.NewClient(cluster(), interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, is := o.(*appsv1.Deployment); is {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, key.Name, errors.New("not yours"))
		}
		return c.Get(ctx, key, o, opts...)
	}})
	_, errs, code := runBoth(t, cl, "import", "metallb", "--apply", "--record", filepath.Join(t.TempDir(), "r.yaml"), "-f", "testdata/metallb/kept.yaml")
	if code != exitError || !strings.Contains(errs, "error: reading the class of IronLB: ") {
		t.Errorf("%d: %s", code, errs)
	}
}
