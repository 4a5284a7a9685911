package v1alpha1

import (
	"fmt"

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
