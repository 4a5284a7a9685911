package ccm

import (
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// waiting gives the only address to s1; s2 and s3 wait for it. s1 is released, so that s2 is woken.
func waiting(t *testing.T) (d *desk, s2 *v1.Service) {
	d = newDesk(t, "203.0.113.4")
	d.adopt()
	s1, s2, s3 := serviceFor("s1"), serviceFor("s2"), serviceFor("s3")
	for _, svc := range []*v1.Service{s1, s2, s3} {
		d.ensure(svc)
	}
	if err := d.ledger.release(t.Context(), keyOf(s1), s1.UID); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.woken, []string{"s2"}) {
		t.Fatalf("woken %v", d.woken)
	}
	return d, s2
}

// TestRoomOfOneThatCannotBeCleared: the Service no longer requests an address, but the API server refuses the write.
func TestRoomOfOneThatCannotBeCleared(t *testing.T) {
	d, s2 := waiting(t)
	d.api.PrependReactor("patch", "services", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("refused") })
	s2.Spec.Type = v1.ServiceTypeClusterIP
	if err := d.lb.EnsureLoadBalancerDeleted(t.Context(), "", s2); err == nil {
		t.Fatal("cleared although the write was refused")
	}
	if !slices.Equal(d.woken, []string{"s2", "s3"}) {
		t.Errorf("woken %v", d.woken)
	}
}

// TestRoomOfADeletedOne: the lister has observed the deletion, the ledger has not.
func TestRoomOfADeletedOne(t *testing.T) {
	d, s2 := waiting(t)
	c := &Cloud{core: informers.NewSharedInformerFactory(fake.NewClientset(), 0), ledger: d.ledger}
	c.wakeService(keyOf(s2))
	if !slices.Equal(d.woken, []string{"s2", "s3"}) {
		t.Errorf("woken %v", d.woken)
	}
}
