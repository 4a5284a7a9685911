package plan

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// globalElements returns the filter elements that depend on no Service, without duplicates: the Pod sources, and the
// ranges of ClusterIPs. The ranges are included only if IronLB serves all Services: a ClusterIP served by another proxy
// would be dropped as unknown.
func globalElements(v *view.View, o Options) []ipvs.Element {
	out := o.DetectLocal.elements(v.Nodes)
	if !o.ServiceProxy || len(v.OtherProxy) > 0 {
		return out
	}
	var networks []netip.Prefix
	for _, prefixes := range v.ServiceNetworks {
		networks = append(networks, prefixes...)
	}
	for _, prefix := range ipvs.Disjoint(networks) {
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
