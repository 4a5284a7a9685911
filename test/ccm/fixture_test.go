// Package ccm tests ironlb-ccm on a real etcd and kube-apiserver: killed at random times, and restarted with thousands
// of Services. All tests share one rig. Each begins with use, which cleans up after it.
//
// IRONLB_LAB_LOGS names a folder for the logs of a failed test.
package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/eventually"
)

const (
	patience  = 30 * time.Second
	firstPort = 10258 // of the first CCM of a test
	api       = "/apis/ironlb.io/v1alpha1"
	alone     = "--leader-elect=false"

	// cleanup is the finalizer of every program built on cloud-provider's service controller.
	cleanup = "service.kubernetes.io/load-balancer-cleanup"
)

func TestMain(m *testing.M) { rig.Main(m) }

// fixture is the rig during one test, which works in one namespace.
type fixture struct {
	*testing.T
	*rig.Rig
	ctx       context.Context
	namespace string
}

// use creates the namespace, if it has a name.
func use(t *testing.T, namespace string) *fixture {
	t.Helper()
	r := rig.Use(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	f := &fixture{T: t, Rig: r, ctx: ctx, namespace: namespace}
	if namespace != "" {
		f.must(f.Namespace(ctx, namespace))
	}
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) apply(manifests string) {
	f.Helper()
	f.must(f.Apply(f.ctx, manifests))
}

// pool applies an IPAddressPool.
func (f *fixture) pool(name string, addresses ...string) {
	f.Helper()
	f.apply(fmt.Sprintf(`{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: %s}, spec: {addresses: ["%s"]}}`,
		name, strings.Join(addresses, `","`)))
}

// advertised applies a pool, and an L2Advertisement of all pools.
func (f *fixture) advertised(name string, addresses ...string) {
	f.Helper()
	f.pool(name, addresses...)
	f.apply("{apiVersion: ironlb.io/v1alpha1, kind: L2Advertisement, metadata: {name: all}, spec: {}}")
}

// read reads an object or a list of IronLB.
func (f *fixture) read(path string, into any) {
	f.Helper()
	data, err := f.Kube.Discovery().RESTClient().Get().AbsPath(api, path).DoRaw(f.ctx)
	f.must(err)
	f.must(json.Unmarshal(data, into))
}

// start starts ironlb-ccm and waits until it is ready.
func (f *fixture) start(flags ...string) *rig.CCM {
	f.Helper()
	c, err := f.StartCCM(f.ctx, firstPort, flags...)
	f.must(err)
	f.must(c.WaitReady(f.ctx, time.Minute))
	return c
}

func (f *fixture) stop(c *rig.CCM) {
	f.Helper()
	f.must(c.Stop(10 * time.Second))
}

func (f *fixture) services() corev1.ServiceInterface {
	return f.Kube.CoreV1().Services(f.namespace)
}

func (f *fixture) create(name string, class *string) *v1.Service {
	f.Helper()
	svc, err := f.services().Create(f.ctx, rig.Service(f.namespace, name, class), metav1.CreateOptions{})
	f.must(err)
	return svc
}

// get returns nil if the Service does not exist.
func (f *fixture) get(name string) *v1.Service {
	f.Helper()
	svc, err := f.services().Get(f.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	f.must(err)
	return svc
}

func (f *fixture) patch(name string, kind types.PatchType, patch, subresource string) {
	f.Helper()
	var subresources []string
	if subresource != "" {
		subresources = []string{subresource}
	}
	_, err := f.services().Patch(f.ctx, name, kind, []byte(patch), metav1.PatchOptions{}, subresources...)
	f.must(err)
}

func (f *fixture) delete(name string) {
	f.Helper()
	f.must(f.services().Delete(f.ctx, name, metav1.DeleteOptions{}))
}

// end deletes the Service and waits until it is gone.
func (f *fixture) end(name string) {
	f.Helper()
	f.delete(name)
	eventually.True(f, patience, "Service "+name+" to go", func() bool { return f.get(name) == nil })
}

// served waits until the Service has one address.
func (f *fixture) served(name string) netip.Addr {
	f.Helper()
	eventually.True(f, patience, name+" is served", func() bool { return len(ingress(f.get(name))) == 1 })
	return ingress(f.get(name))[0]
}

// becomes waits until IronLB's condition has the reason, and the status has the addresses.
func (f *fixture) becomes(name, reason string, addresses ...string) {
	f.Helper()
	var want []netip.Addr
	for _, a := range addresses {
		want = append(want, netip.MustParseAddr(a))
	}
	eventually.Nil(f, patience, fmt.Sprintf("%s is %s with %v", name, reason, want), func(context.Context) error {
		is, has := f.reason(name), ingress(f.get(name))
		return eventually.Unless(is == reason && slices.Equal(has, want), "it is %s with %v", is, has)
	})
}

// reason returns the reason of IronLB's condition.
func (f *fixture) reason(name string) string {
	f.Helper()
	if c := meta.FindStatusCondition(f.get(name).Status.Conditions, v1alpha1.ConditionAllocated); c != nil {
		return c.Reason
	}
	return ""
}

// clean reports whether the Service has no record of IronLB's.
func (f *fixture) clean(name string) bool {
	return f.reason(name) == "" && f.get(name).Annotations[v1alpha1.AnnotationAllocatedFrom] == ""
}
