package v1alpha1

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools"
)

// ParsePool parses the object. An error names the field; the CRD's rules refuse most of what it refuses.
func ParsePool(obj *IPAddressPool) (pools.Pool, error) {
	spec := &obj.Spec
	ranges, err := pools.ParseRanges(spec.Addresses)
	if err != nil {
		return pools.Pool{}, fmt.Errorf("spec.%w", err) // it begins with addresses[i]
	}
	p := pools.Pool{
		Name:          obj.Name,
		Created:       obj.CreationTimestamp.Time,
		Ranges:        ranges,
		AutoAssign:    spec.AutoAssign == nil || *spec.AutoAssign,
		AvoidBuggyIPs: spec.AvoidBuggyIPs,
	}
	if p.Allocation, err = allocationOf(spec.ServiceAllocation); err != nil {
		return pools.Pool{}, fmt.Errorf("spec.serviceAllocation.%w", err)
	}
	if _, err := ParseReturnRoutes(spec); err != nil {
		return pools.Pool{}, fmt.Errorf("spec.%w", err)
	}
	if spec.Sharing != nil {
		p.SharingNamespaces = spec.Sharing.Namespaces
	}
	if spec.ReuseAfter != nil {
		p.ReuseAfter = spec.ReuseAfter.Duration
	}
	if spec.NamespaceQuota != nil {
		p.NamespaceQuota = pools.Limit{Set: true, Max: *spec.NamespaceQuota}
	}
	return p, nil
}

func allocationOf(in *ServiceAllocation) (pools.Allocation, error) {
	if in == nil {
		return pools.Allocation{}, nil
	}
	out := pools.Allocation{Set: true, Priority: in.Priority, Namespaces: in.Namespaces}
	var err error
	if out.NamespaceSelectors, err = selectorsOf("namespaceSelectors", in.NamespaceSelectors); err != nil {
		return pools.Allocation{}, err
	}
	out.ServiceSelectors, err = selectorsOf("serviceSelectors", in.ServiceSelectors)
	return out, err
}

func selectorsOf(field string, in []metav1.LabelSelector) ([]pools.Selector, error) {
	var out []pools.Selector
	for i := range in {
		sel, err := SelectorOf(&in[i])
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", field, i, err)
		}
		out = append(out, sel)
	}
	return out, nil
}

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
