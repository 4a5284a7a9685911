package ipvs

import (
	"net/netip"
	"slices"
)

// Disjoint returns the prefixes masked and sorted, without those inside another one: an nftables interval set rejects
// overlapping elements. Two prefixes are disjoint, or one contains the other.
func Disjoint(prefixes []netip.Prefix) []netip.Prefix {
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
