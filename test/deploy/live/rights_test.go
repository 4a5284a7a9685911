package live

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/test/deploy/chart"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/rare"
)

// TestEachRightOfHooks removes every rule of the hooks' roles, one at a time. Without the rule the API server must
// refuse that request and the hook's program must fail; with the rule restored, the program must succeed.
func TestEachRightOfHooks(t *testing.T) {
	rare.Test(t)
	f := newFixture(t, chart.Versions[0])
	f.helm("install", chart.Release, f.chart.Path(), "--create-namespace", pools)
	upgrade, err := f.chart.Template(f.ctx, f.version, chart.Release, chart.Namespace, "--show-only", "templates/hooks/crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	uninstall, err := manifest.Load(f.Root(), chart.UninstallFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, hook := range []struct {
		account string
		docs    manifest.Documents
		args    []string
		prepare func(fixture, manifest.Right)
	}{
		{"ironlb-crds", upgrade, []string{"crds", "--timeout=30s"}, fixture.olderCRDs},
		{"ironlb-uninstall", uninstall, []string{"release", "--wait-for-daemonset=ironlb-cleanup", "--timeout=8s"}, func(f fixture, r manifest.Right) {
			if err := f.Apply(f.ctx, uninstall.Only("DaemonSet").String()); err != nil {
				f.Fatal(err)
			}
			f.servedBefore(r)
		}},
	} {
		program := f.as(hook.account, hook.docs)
		rights := rightsOf(t, hook.account, hook.docs)
		if len(rights) == 0 {
			t.Fatalf("%s has no rights: the test sees nothing", hook.account)
		}
		for _, r := range rights {
			t.Run(hook.account+"/"+strings.ReplaceAll(r.String(), " ", "_"), func(t *testing.T) {
				f := f
				f.T = t
				run := func() (string, error) { return f.Exec(f.ctx, slices.Concat(program[:1], hook.args, program[1:])...) }
				hook.prepare(f, r)
				f.change(r, hook.docs, true)
				out, err := run()
				want := fmt.Sprintf("cannot %s resource %q", r.Rule.Verbs[0], r.Rule.Resources[0])
				if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `\"`, `"`), want) {
					t.Errorf("without the rule it ends with %v, want %q\n%s", err, want, out)
				}
				f.change(r, hook.docs, false)
				hook.prepare(f, r)
				if out, err := run(); err != nil {
					t.Errorf("with the rule again: %v\n%s", err, out)
				}
			})
		}
	}
}

// rightsOf returns the rules of the account's roles.
func rightsOf(t *testing.T, account string, docs manifest.Documents) (all []manifest.Right) {
	for _, doc := range docs.Only("ClusterRole", "Role") {
		for _, rule := range rulesOf(t, doc) {
			all = append(all, manifest.Right{Account: account, Kind: doc.Kind, Namespace: doc.Namespace, Object: doc.Name, Rule: rule})
		}
	}
	return all
}

func rulesOf(t *testing.T, doc manifest.Document) []rbacv1.PolicyRule {
	var role rbacv1.ClusterRole // a Role has the same fields
	if err := yaml.UnmarshalStrict([]byte(doc.Text), &role); err != nil {
		t.Fatal(err)
	}
	return manifest.Rules(role.Rules)
}

// change sets the role's rules, with or without r, and waits until the change takes effect.
func (f fixture) change(r manifest.Right, docs manifest.Documents, without bool) {
	f.Helper()
	doc, err := docs.Find(r.Kind, r.Object)
	if err != nil {
		f.Fatal(err)
	}
	rules := slices.DeleteFunc(rulesOf(f.T, doc), func(rule rbacv1.PolicyRule) bool { return without && equality.Semantic.DeepEqual(rule, r.Rule) })
	patch, err := json.Marshal(map[string]any{"rules": rules})
	if err != nil {
		f.Fatal(err)
	}
	if r.Kind == "Role" {
		_, err = f.Kube.RbacV1().Roles(r.Namespace).Patch(f.ctx, r.Object, types.MergePatchType, patch, metav1.PatchOptions{})
	} else {
		_, err = f.Kube.RbacV1().ClusterRoles().Patch(f.ctx, r.Object, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		f.Fatal(err)
	}
	eventually.Nil(f, patience, fmt.Sprintf("%s may %v: %t", r.Account, r, !without), func(context.Context) error {
		answer, err := f.Kube.AuthorizationV1().SubjectAccessReviews().Create(f.ctx, r.Review(chart.Namespace), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		return eventually.Unless(answer.Status.Allowed == !without, "it is %+v", answer.Status)
	})
}

// olderCRDs removes a CRD, for the program to recreate.
func (f fixture) olderCRDs(manifest.Right) {
	f.kubectl("delete", "crd", "communities.ironlb.io", "--ignore-not-found")
}

// servedBefore creates the residual state of an installation whose programs have ended: a Service with its finalizer, a
// VirtualIP, a SpeakerStatus, the Lease (unless the right is to create it), and a DaemonSet that has cleaned all nodes.
func (f fixture) servedBefore(r manifest.Right) {
	f.Helper()
	lease := `
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: ironlb-ccm, namespace: ironlb-system}
spec: {holderIdentity: "", leaseDurationSeconds: 1, leaseTransitions: 1}` // or it would stay with the attempt that failed
	if r.Key() == "create leases" {
		f.kubectl("-n", chart.Namespace, "delete", "lease", "ironlb-ccm", "--ignore-not-found")
		lease = ""
	}
	if err := f.Apply(f.ctx, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default, finalizers: [ironlb.io/load-balancer]}
spec: {type: LoadBalancer, ports: [{port: 80}]}
---
apiVersion: ironlb.io/v1alpha1
kind: VirtualIP
metadata: {name: 192.0.2.1}
spec: {addresses: [192.0.2.1], services: [{namespace: default, name: web}]}
---
apiVersion: ironlb.io/v1alpha1
kind: SpeakerStatus
metadata: {name: node1}`+lease); err != nil {
		f.Fatal(err)
	}
	f.kubectl("-n", chart.Namespace, "patch", "daemonset", "ironlb-cleanup", "--subresource=status", "--type=merge",
		`-p={"status":{"observedGeneration":9,"desiredNumberScheduled":3,"numberReady":3,"currentNumberScheduled":3,"numberMisscheduled":0}}`)
}
