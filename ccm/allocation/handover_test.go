package allocation

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/ccmtest"
)

// between runs a function once, between the first patch of a Service and its response.
type between struct {
	corev1.ServicesGetter
	do func()
}

func (b *between) Services(namespace string) corev1.ServiceInterface {
	return betweenServices{b.ServicesGetter.Services(namespace), b}
}

type betweenServices struct {
	corev1.ServiceInterface
	b *between
}

func (s betweenServices) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*v1.Service, error) {
	svc, err := s.ServiceInterface.Patch(ctx, name, pt, data, o, sub...)
	if do := s.b.do; do != nil {
		s.b.do = nil
		do()
	}
	return svc, err
}

// TestHandedOverWhileCleared: a Service stops being a load balancer and becomes one with a class. Both controllers then
// process it at the same time. The service controller's cleanup does not free what the class controller wrote.
func TestHandedOverWhileCleared(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32", ccmtest.ServiceFor("unrelated"))
	s := ccmtest.ServiceFor("s")
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
	plain := s.DeepCopy()
	plain.Spec.Type = v1.ServiceTypeClusterIP
	classed := ccmtest.ServiceFor("s", func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To(defaults.Class) })
	r := f.Lb.Registrar
	r.api = &between{r.api, func() {
		if err := r.serve(t.Context(), classed); err != nil {
			t.Error(err)
		}
	}}
	if err := f.Lb.EnsureLoadBalancerDeleted(t.Context(), "", plain); err != nil {
		t.Fatal(err)
	}
	f.Expect(f.Ensure(ccmtest.ServiceFor("t", func(s *v1.Service) { s.UID = "2" })), "1 writes, PoolExhausted")
}

// TestSettledWhileMoved: an older copy of a Service that is being moved does not count as settled. Otherwise the
// address that is being written would be freed.
func TestSettledWhileMoved(t *testing.T) {
	asks := func(ip string) func(*v1.Service) { return ccmtest.Annotate("ironlb.io/ips", ip) }
	f := newFixture(t, "203.0.113.4/31", ccmtest.ServiceFor("unrelated"))
	s := ccmtest.ServiceFor("s", asks("203.0.113.4"))
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
	old := s.DeepCopy()
	asks("203.0.113.5")(s)
	r := f.Lb.Registrar
	r.api = &between{r.api, func() {
		if r.settled(t.Context(), old) {
			t.Error("it passes for settled")
		}
	}}
	f.Expect(f.Ensure(s), "1 writes, 203.0.113.5 Proxy, Allocated")
	f.Expect(f.Ensure(ccmtest.ServiceFor("t", func(s *v1.Service) { s.UID = "2" }, asks("203.0.113.5"))), "1 writes, AddressTaken")
}
