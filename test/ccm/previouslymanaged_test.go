package ccm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/eventually"
)

// cleanup is the finalizer of every program built on cloud-provider's service controller.
const cleanup = "service.kubernetes.io/load-balancer-cleanup"

// TestOnlyClassLater starts ironlb-ccm with --only-class after it has served Services without a class. These keep their
// addresses without a write, and no other Service gets them. Each can be deleted, made ClusterIP or taken over by
// another controller.
func TestOnlyClassLater(t *testing.T) {
	const namespace = "previous"
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f := unmanagedCCM{T: t, Rig: rig.Start(t, rig.Config{}), ctx: ctx, namespace: namespace}
	f.must(f.Apply(ctx, `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: previous}
spec: {addresses: ["2001:db8:1::/126"]}
`))
	f.must(f.Namespace(ctx, namespace))
	before, err := f.StartCCM(ctx, firstPort, "--leader-elect=false")
	f.must(err)
	old := []string{"a", "b", "c", "d"}
	for _, name := range old {
		f.create(name, nil)
		eventually.True(f, patience, name+" is served", func() bool {
			return len(ingress(f.get(name))) == 1 && slices.Equal(f.get(name).Finalizers, []string{cleanup})
		})
	}
	f.create("waits", nil)
	eventually.True(f, patience, "one waits", func() bool { return f.reason("waits") == "PoolExhausted" })
	f.must(before.Stop(10 * time.Second))
	never := f.create("never", nil)
	f.patch("never", types.MergePatchType, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, cleanup), "")
	versions := map[string]string{}
	had := map[string]netip.Addr{}
	for _, name := range old {
		versions[name], had[name] = f.get(name).ResourceVersion, ingress(f.get(name))[0]
	}

	after, err := f.StartCCM(ctx, firstPort, "--leader-elect=false", "--only-class")
	f.must(err)
	heir := func(of string) {
		t.Helper()
		f.create("heir-of-"+of, ptr.To("ironlb.io/lb"))
		eventually.True(f, patience, "the heir of "+of+" is served", func() bool { return slices.Contains(ingress(f.get("heir-of-"+of)), had[of]) })
	}
	f.create("heir-of-a", ptr.To("ironlb.io/lb"))
	eventually.True(f, patience, "the heir of a waits", func() bool { return f.reason("heir-of-a") == "PoolExhausted" })
	for _, name := range old {
		if v := f.get(name).ResourceVersion; v != versions[name] {
			t.Errorf("%s was written to", name)
		}
	}
	f.must(f.services().Delete(ctx, "a", metav1.DeleteOptions{}))
	eventually.True(f, patience, "a is gone", func() bool { return f.get("a") == nil })
	eventually.True(f, patience, "the heir of a is served", func() bool { return slices.Contains(ingress(f.get("heir-of-a")), had["a"]) })

	f.patch("b", types.MergePatchType, `{"spec":{"type":"ClusterIP","allocateLoadBalancerNodePorts":null}}`, "")
	eventually.True(f, patience, "b is clean", func() bool { return f.clean("b") && len(f.get("b").Finalizers) == 0 })
	heir("b")

	f.patch("c", types.MergePatchType, `{"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.9"}]}}}`, "status")
	eventually.True(f, patience, "our record is off c", func() bool { return f.clean("c") })
	if c := f.get("c"); !slices.Equal(c.Finalizers, []string{cleanup}) || ingress(c)[0] != netip.MustParseAddr("198.51.100.9") {
		t.Errorf("c is another controller's and has %v, %v", c.Finalizers, ingress(c))
	}
	heir("c")

	f.must(f.services().Delete(ctx, "waits", metav1.DeleteOptions{}))
	eventually.True(f, patience, "the one that waited is gone", func() bool { return f.get("waits") == nil })

	f.must(f.services().Delete(ctx, "never", metav1.DeleteOptions{}))
	f.must(f.services().Delete(ctx, "d", metav1.DeleteOptions{}))
	eventually.True(f, patience, "d is gone", func() bool { return f.get("d") == nil })
	if n := f.get("never"); n == nil || n.UID != never.UID || !slices.Equal(n.Finalizers, []string{cleanup}) {
		t.Errorf("one that never was ours was touched: %v", n)
	}
	heir("d")
	f.must(after.Stop(10 * time.Second))
}

// unmanagedCCM holds the state of the test.
type unmanagedCCM struct {
	*testing.T
	*rig.Rig
	ctx       context.Context
	namespace string
}

func (f *unmanagedCCM) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *unmanagedCCM) services() corev1.ServiceInterface {
	return f.Kube.CoreV1().Services(f.namespace)
}

func (f *unmanagedCCM) create(name string, class *string) *v1.Service {
	f.Helper()
	svc, err := f.services().Create(f.ctx, rig.Service(f.namespace, name, class), metav1.CreateOptions{})
	f.must(err)
	return svc
}

// get returns nil if the Service does not exist.
func (f *unmanagedCCM) get(name string) *v1.Service {
	f.Helper()
	svc, err := f.services().Get(f.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	f.must(err)
	return svc
}

func (f *unmanagedCCM) patch(name string, kind types.PatchType, patch, subresource string) {
	f.Helper()
	var subresources []string
	if subresource != "" {
		subresources = []string{subresource}
	}
	_, err := f.services().Patch(f.ctx, name, kind, []byte(patch), metav1.PatchOptions{}, subresources...)
	f.must(err)
}

// reason returns the reason of IronLB's condition.
func (f *unmanagedCCM) reason(name string) string {
	for _, c := range f.get(name).Status.Conditions {
		if c.Type == "ironlb.io/Allocated" {
			return c.Reason
		}
	}
	return ""
}

// clean reports whether the Service has no record of IronLB's.
func (f *unmanagedCCM) clean(name string) bool {
	return f.reason(name) == "" && f.get(name).Annotations[v1alpha1.AnnotationAllocatedFrom] == ""
}
