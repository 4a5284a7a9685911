package kube

import (
	"maps"
	"slices"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// withUnserved adds the addresses that serve no traffic, the lowest ones of each reason.
func withUnserved(out *v1alpha1.BGPStatus, unserved map[view.Reason]report.Unserved) *v1alpha1.BGPStatus {
	if len(unserved) == 0 {
		return out
	}
	if out == nil {
		out = &v1alpha1.BGPStatus{}
	}
	for _, reason := range slices.Sorted(maps.Keys(unserved)) {
		of := unserved[reason]
		to := v1alpha1.UnservedStatus{Reason: string(reason), Message: of.Message, Count: int32(len(of.Addresses))}
		for _, addr := range of.Addresses[:min(len(of.Addresses), v1alpha1.MostUnserved)] {
			to.Addresses = append(to.Addresses, addr.String())
		}
		out.Unserved = append(out.Unserved, to)
	}
	return out
}
