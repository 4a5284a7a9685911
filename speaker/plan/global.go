package plan

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// globalElements returns the elements of the packet filter that depend on no Service, without repetition: what counts
// as a Pod, and the cluster's ranges of ClusterIPs. The latter only where all Services are served here: a ClusterIP
// that another proxy serves would be dropped as one that nobody has.
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

// podsKnown tells for each family whether anything counts as a Pod.
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

// disjoint returns the prefixes masked and sorted, without those that another one holds: nftables takes no overlapping
// elements in a set of intervals.
func disjoint(prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	masked := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() {
			masked = append(masked, p.Masked())
		}
	}
	slices.SortFunc(masked, netip.Prefix.Compare) // one that holds another comes before it
	for _, p := range masked {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}
