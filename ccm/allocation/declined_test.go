package allocation

import (
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
)

// waiting gives the only address to s1; s2 and s3 wait for it. s1 is released, so that s2 is woken.
func waiting(t *testing.T) (f *fixture, s2 *v1.Service) {
	f = newFixture(t, "203.0.113.4")
	f.Adopt()
	s1, s2, s3 := ccmtest.ServiceFor("s1"), ccmtest.ServiceFor("s2"), ccmtest.ServiceFor("s3")
	for _, svc := range []*v1.Service{s1, s2, s3} {
		f.Ensure(svc)
	}
	if err := f.Ledger.Release(t.Context(), servicerecord.KeyOf(s1), s1.UID); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.Woken, []string{"s2"}) {
		t.Fatalf("woken %v", f.Woken)
	}
	return f, s2
}

// TestRoomOfOneThatCannotBeCleared: the Service no longer requests an address, but the API server refuses the write.
func TestRoomOfOneThatCannotBeCleared(t *testing.T) {
	f, s2 := waiting(t)
	f.Api.PrependReactor("patch", "services", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("refused") })
	s2.Spec.Type = v1.ServiceTypeClusterIP
	if err := f.Lb.EnsureLoadBalancerDeleted(t.Context(), "", s2); err == nil {
		t.Fatal("cleared although the write was refused")
	}
	if !slices.Equal(f.Woken, []string{"s2", "s3"}) {
		t.Errorf("woken %v", f.Woken)
	}
}

// TestRoomOfADeletedOne: the lister has observed the deletion, the ledger has not.
func TestRoomOfADeletedOne(t *testing.T) {
	f, s2 := waiting(t)
	c := &Controllers{services: informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Services(), Ledger: f.Ledger}
	c.wakeService(servicerecord.KeyOf(s2))
	if !slices.Equal(f.Woken, []string{"s2", "s3"}) {
		t.Errorf("woken %v", f.Woken)
	}
}
