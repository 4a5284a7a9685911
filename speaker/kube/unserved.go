package kube

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// notProgrammed is the message for an address that the node could not program.
const notProgrammed = "this node does not announce it: it could not be programmed; see /readyz of the speaker"

// withNotDirect adds the addresses that only BGP announces and that are not forwarded directly.
func withNotDirect(out *v1alpha1.BGPStatus, addrs map[view.Reason]report.NotDirect) *v1alpha1.BGPStatus {
	if len(addrs) == 0 {
		return out
	}
	if out == nil {
		out = &v1alpha1.BGPStatus{}
	}
	for _, reason := range slices.Sorted(maps.Keys(addrs)) {
		of := addrs[reason]
		out.NotDirect = append(out.NotDirect, v1alpha1.NewUnservedStatus(string(reason), of.Message, of.Addresses))
	}
	return out
}

// withUnserved adds the addresses that the node could not program, the lowest ones of each reason.
func withUnserved(out *v1alpha1.BGPStatus, unserved map[view.Reason][]netip.Addr) *v1alpha1.BGPStatus {
	if len(unserved) == 0 {
		return out
	}
	if out == nil {
		out = &v1alpha1.BGPStatus{}
	}
	for _, reason := range slices.Sorted(maps.Keys(unserved)) {
		out.Unserved = append(out.Unserved, v1alpha1.NewUnservedStatus(string(reason), notProgrammed, unserved[reason]))
	}
	return out
}
