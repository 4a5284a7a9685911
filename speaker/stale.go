package speaker

import (
	"context"
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// dropStale makes the filter forget how it treats clients of virtual servers that go on otherwise: masqueraded no longer, or from
// fewer sources. That comes after those real servers have gone that are not wanted, which may need it, and before others come: an address may be
// another Service's now, whose clients were never to be treated so. Where the kernel refuses, setServers adds none.
func (s *Speaker) dropStale(ctx context.Context, todo *work) {
	stale := s.stale(todo.elements)
	if len(stale) == 0 {
		return
	}
	s.dropServers(&s.known.inside, s.desired.Inside, "inside ", stale, todo)
	s.dropServers(&s.known.table, s.desired.Table, "", stale, todo)
	var changes []ipvs.FilterChange
	for _, elements := range stale {
		for _, e := range elements {
			changes = append(changes, ipvs.FilterChange{Element: e, Delete: true})
		}
	}
	s.updateFilter(ctx, changes)
}

// stale returns, of the virtual servers that are wanted, those of the elements that say how their clients are treated, are in the
// filter and need not be. There are none while the filter is not in force.
func (s *Speaker) stale(elements map[ipvs.Element]struct{}) map[ipvs.Key][]ipvs.Element {
	out := map[ipvs.Key][]ipvs.Element{}
	if !s.known.whole {
		return out
	}
	for e := range elements {
		if !has(s.known.filter, e) || s.wantsElement(e) || !s.wantsKey(e.Key) {
			continue
		}
		switch e.Set {
		case ipvs.Masqueraded, ipvs.MasqueradedUnlessPod:
			out[e.Key] = append(out[e.Key], e)
		case ipvs.Allowed: // where all may come now, this must not go before the restriction
			if s.wantsElement(ipvs.Element{Set: ipvs.Restricted, Key: e.Key}) {
				out[e.Key] = append(out[e.Key], e)
			}
		}
	}
	return out
}

// tainted returns the virtual servers that must not get real servers yet: what is stale could not be dropped, now or earlier.
func (s *Speaker) tainted(todo *work) map[ipvs.Key][]ipvs.Element {
	failed := s.failed.elements
	if s.failed.all {
		failed = s.known.filter
	}
	out := s.stale(todo.elements)
	maps.Copy(out, s.stale(failed))
	return out
}

// dropServers takes the real servers that are not wanted out of some virtual servers.
func (s *Speaker) dropServers(t *servers, desired ipvs.Table, kind string, of map[ipvs.Key][]ipvs.Element, todo *work) {
	keys, want := map[ipvs.Key]struct{}{}, ipvs.Table{}
	for key := range of {
		have, exists := t.have[key]
		if !exists {
			continue
		}
		keys[key] = struct{}{}
		if vs, wanted := desired[key]; wanted {
			want[key] = kept(have, vs)
		}
	}
	s.change(t, keys, want, kind, todo)
}

// kept is what there is of a virtual server less the real servers that are not wanted.
func kept(have, want ipvs.VirtualServer) ipvs.VirtualServer {
	have.RealServers = maps.Clone(have.RealServers)
	maps.DeleteFunc(have.RealServers, func(at netip.AddrPort, _ ipvs.RealServer) bool { return !has(want.RealServers, at) })
	return have
}
