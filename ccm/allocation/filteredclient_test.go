package allocation

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	servicehelper "k8s.io/cloud-provider/service/helpers"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
)

// TestFilteredStatus: what the service controller writes after a deletion does not affect a Service recreated under the
// name.
func TestFilteredStatus(t *testing.T) {
	old := ccmtest.ServiceFor("s1", ccmtest.Shows("203.0.113.4"))
	recreated := ccmtest.ServiceFor("s1", ccmtest.Shows("203.0.113.5"))
	api := fake.NewClientset(recreated)
	emptied := old.DeepCopy()
	emptied.Status.LoadBalancer = v1.LoadBalancerStatus{}
	if _, err := servicehelper.PatchService(filteredClient{api}.CoreV1(), old, emptied); err != nil {
		t.Fatal(err)
	}
	got, err := api.CoreV1().Services(recreated.Namespace).Get(t.Context(), recreated.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if in := servicerecord.IPs(got.Status.LoadBalancer.Ingress); len(in) != 1 || in[0] != "203.0.113.5" {
		t.Errorf("the new Service shows %v", in)
	}
}

// TestFilteredFinalizer: the service controller's finalizer is added with the outcome, not before it. It is removed
// when the service controller removes it, also if there are other finalizers.
func TestFilteredFinalizer(t *testing.T) {
	for _, others := range [][]string{nil, {"example.com/other"}} {
		with := ccmtest.ServiceFor("s1", func(s *v1.Service) {
			s.Finalizers = append(slices.Clone(others), servicehelper.LoadBalancerCleanupFinalizer)
		})
		without := ccmtest.ServiceFor("s1", func(s *v1.Service) { s.Finalizers = others })
		api := fake.NewClientset(without.DeepCopy())
		services := api.CoreV1().Services(without.Namespace)
		expect := func(what string, want bool) {
			t.Helper()
			got, err := services.Get(t.Context(), without.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if servicerecord.HasFinalizer(got, servicehelper.LoadBalancerCleanupFinalizer) != want {
				t.Errorf("%s: %v", what, got.Finalizers)
			}
		}
		if _, err := servicehelper.PatchService(filteredClient{api}.CoreV1(), without, with.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		expect("added by the service controller", false)
		if _, err := services.Update(t.Context(), with.DeepCopy(), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := servicehelper.PatchService(filteredClient{api}.CoreV1(), with, without.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		expect("taken off by the service controller", false)
	}
}

// TestDeletedWithForeignFinalizer: an object whose deletion is pending does not show a freed address.
func TestDeletedWithForeignFinalizer(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32")
	f.Adopt()
	s1 := ccmtest.ServiceFor("s1")
	s1.Finalizers = []string{servicehelper.LoadBalancerCleanupFinalizer, "example.com/other"}
	f.Ensure(s1)
	now := metav1.Now()
	s1.DeletionTimestamp = &now
	if err := f.Lb.EnsureLoadBalancerDeleted(t.Context(), "", s1); err != nil {
		t.Fatal(err)
	}
	got, err := f.Api.CoreV1().Services(s1.Namespace).Get(t.Context(), s1.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o := servicerecord.OutcomeIn(got); !o.Equal(servicerecord.Outcome{Finalizer: o.Finalizer}) {
		t.Errorf("left on the object: %+v", o)
	}
}
