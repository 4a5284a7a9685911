package plan

import "github.com/ironlb/ironlb/ipvs"

// globalElements returns the elements of the packet filter that depend on no Service, without repetition.
func globalElements(_ *View, o Options) []ipvs.Element {
	var out []ipvs.Element
	for _, prefix := range o.PodCIDRs {
		out = append(out, ipvs.Element{Set: ipvs.Pods, Prefix: prefix.Masked()})
	}
	return out
}
