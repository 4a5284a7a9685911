package v1alpha1

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools"
)

// SelectorOf reads a label selector of a spec. One that cannot be read matches nothing, and the error has the reason:
// an unknown operator, values that must or must not be there, a bad name. The CRD's schema lets these through.
func SelectorOf(in *metav1.LabelSelector) (pools.Selector, error) {
	if _, err := metav1.LabelSelectorAsSelector(in); err != nil {
		return pools.Selector{{}}, err // no operator: never met
	}
	out := pools.Selector{}
	for _, key := range slices.Sorted(maps.Keys(in.MatchLabels)) {
		out = append(out, pools.Requirement{Key: key, Operator: pools.In, Values: []string{in.MatchLabels[key]}})
	}
	for _, e := range in.MatchExpressions {
		out = append(out, pools.Requirement{Key: e.Key, Operator: pools.Operator(e.Operator), Values: e.Values})
	}
	return out, nil
}
