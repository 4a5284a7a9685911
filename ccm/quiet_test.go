package ccm

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	servicehelper "k8s.io/cloud-provider/service/helpers"
)

// TestQuietStatus: what the service controller writes after a deletion does not reach a Service made anew under the name.
func TestQuietStatus(t *testing.T) {
	old := serviceFor("s1", shows("203.0.113.4"))
	anew := serviceFor("s1", shows("203.0.113.5"))
	api := fake.NewClientset(anew)
	emptied := old.DeepCopy()
	emptied.Status.LoadBalancer = v1.LoadBalancerStatus{}
	if _, err := servicehelper.PatchService(quiet{api}.CoreV1(), old, emptied); err != nil {
		t.Fatal(err)
	}
	finalized := old.DeepCopy()
	finalized.Finalizers = []string{servicehelper.LoadBalancerCleanupFinalizer}
	if _, err := servicehelper.PatchService(quiet{api}.CoreV1(), old, finalized); err != nil {
		t.Fatal(err)
	}
	got, err := api.CoreV1().Services(anew.Namespace).Get(t.Context(), anew.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if in := ips(got.Status.LoadBalancer.Ingress); len(in) != 1 || in[0] != "203.0.113.5" {
		t.Errorf("the new Service shows %v", in)
	}
	if !has(got, servicehelper.LoadBalancerCleanupFinalizer) {
		t.Errorf("finalizers are written: %v", got.Finalizers)
	}
}

// TestDeletedWithForeignFinalizer: an object that stays for a while does not show an address that is free.
func TestDeletedWithForeignFinalizer(t *testing.T) {
	d := newDesk(t, "203.0.113.4/32")
	d.adopt()
	s1 := serviceFor("s1")
	s1.Finalizers = []string{servicehelper.LoadBalancerCleanupFinalizer, "example.com/other"}
	d.ensure(s1)
	now := metav1.Now()
	s1.DeletionTimestamp = &now
	if err := d.lb.EnsureLoadBalancerDeleted(t.Context(), "", s1); err != nil {
		t.Fatal(err)
	}
	got, err := d.api.CoreV1().Services(s1.Namespace).Get(t.Context(), s1.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o := outcomeIn(got); !o.equal(outcome{}) {
		t.Errorf("left on the object: %+v", o)
	}
}
