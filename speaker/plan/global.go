package plan

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// globalElements returns the filter elements that depend on no Service, without duplicates: the Pod sources, and the
// ranges of ClusterIPs. The ranges are included only if IronLB serves all Services: a ClusterIP served by another proxy
// would be dropped as unknown.
func globalElements(v *View, o Options) []ipvs.Element {
	out := o.DetectLocal.elements(v.Nodes)
	if !o.ServiceProxy || len(v.OtherProxy) > 0 {
		return out
	}
	var networks []netip.Prefix
	for _, prefixes := range v.ServiceNetworks {
		networks = append(networks, prefixes...)
	}
	for _, prefix := range disjoint(networks) {
		out = append(out, ipvs.Element{Set: ipvs.ServiceNetworks, Prefix: prefix})
	}
	return out
}

// podsKnown records for each family whether there are Pod sources.
type podsKnown struct{ four, six bool }

func podFamilies(global []ipvs.Element) podsKnown {
	var out podsKnown
	for _, e := range global {
		if e.Set == ipvs.Pods || e.Set == ipvs.PodInterfaces {
			out.four, out.six = out.four || e.Is4(), out.six || !e.Is4()
		}
	}
	return out
}

func (k podsKnown) of(addr netip.Addr) bool { return addr.Is4() && k.four || addr.Is6() && k.six }

// disjoint returns the prefixes masked and sorted, without those inside another one: an nftables interval set rejects
// overlapping elements.
func disjoint(prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	masked := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() {
			masked = append(masked, p.Masked())
		}
	}
	slices.SortFunc(masked, netip.Prefix.Compare) // a prefix sorts before those inside it
	for _, p := range masked {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}
