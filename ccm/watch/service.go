package watch

import (
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// ServiceChanged reports whether the change is relevant to placement.
func ServiceChanged(before, after *v1.Service) bool {
	return before.Spec.Type != after.Spec.Type ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		before.Annotations[v1alpha1.AnnotationAllocatedFrom] != after.Annotations[v1alpha1.AnnotationAllocatedFrom] ||
		!maps.Equal(before.Labels, after.Labels) || !sameIngress(before.Status.LoadBalancer.Ingress, after.Status.LoadBalancer.Ingress)
}

func sameIngress(a, b []v1.LoadBalancerIngress) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].IP != b[i].IP {
			return false
		}
	}
	return true
}
