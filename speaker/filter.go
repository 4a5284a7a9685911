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

// addresses returns the virtual addresses that a filter names.
func addresses(f ipvs.Filter) map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	for e := range f {
		if e.Set == ipvs.Addresses {
			out[e.Key.Addr] = struct{}{}
		}
	}
	return out
}

func isServed(f ipvs.Filter, key ipvs.Key) bool {
	_, ok := f[ipvs.Element{Set: ipvs.Served, Key: key}]
	return ok
}

// both returns what either filter holds.
func both(f, g ipvs.Filter) ipvs.Filter {
	out := maps.Clone(f)
	maps.Copy(out, g)
	return out
}

// leftover returns the filter of those virtual servers that are not wanted but still there.
func leftover(have, want ipvs.Table, filter ipvs.Filter) ipvs.Filter {
	out := ipvs.Filter{}
	for key := range have {
		if _, wanted := want[key]; wanted {
			continue
		}
		for _, e := range []ipvs.Element{
			{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}}, {Set: ipvs.Served, Key: key}, {Set: ipvs.Masqueraded, Key: key},
		} {
			if _, ok := filter[e]; ok {
				out[e] = struct{}{}
			}
		}
	}
	return out
}
