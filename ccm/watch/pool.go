package watch

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// PoolChanged reports whether the change is relevant to placement: the number of assigned addresses is not.
func PoolChanged(before, after *v1alpha1.IPAddressPool) bool {
	return before.Generation != after.Generation || !labels.Equals(before.Labels, after.Labels) ||
		before.Annotations[v1alpha1.AnnotationRebalance] != after.Annotations[v1alpha1.AnnotationRebalance] ||
		before.Status.Rebalanced != after.Status.Rebalanced
}
