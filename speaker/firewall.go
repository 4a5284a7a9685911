package speaker

import (
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// union returns all addresses of the sets.
func union(sets ...map[netip.Addr]struct{}) map[netip.Addr]struct{} {
	all := map[netip.Addr]struct{}{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}

// leftover returns the firewall of those virtual servers that are not wanted but still there.
func leftover(have, want ipvs.Table, fw ipvs.Firewall) ipvs.Firewall {
	out := ipvs.Firewall{Addrs: map[netip.Addr]struct{}{}, Served: map[ipvs.Key]struct{}{}, Masquerade: map[ipvs.Key]struct{}{}}
	for key := range have {
		if _, wanted := want[key]; wanted {
			continue
		}
		out.Addrs[key.Addr] = struct{}{}
		out.Served[key] = struct{}{}
		if _, ok := fw.Masquerade[key]; ok {
			out.Masquerade[key] = struct{}{}
		}
	}
	return out
}
