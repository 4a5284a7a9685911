package speaker

import (
	"context"
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// dropStale deletes filter elements that treat clients of remaining virtual servers in an outdated way: no longer
// masqueraded, or from fewer sources. First it deletes the unwanted real servers, which may need these elements. New
// real servers come later: the address may belong to another Service now, whose clients must never be treated so. If
// the kernel refuses, setServers adds none.
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

// stale returns, for each wanted virtual server, the filter elements about its clients that exist and are no longer
// needed. It returns none while the filter is not in force.
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
		case ipvs.Allowed: // if all sources are allowed now, this must not be deleted before the restriction
			if s.wantsElement(ipvs.Element{Set: ipvs.Restricted, Key: e.Key}) {
				out[e.Key] = append(out[e.Key], e)
			}
		}
	}
	return out
}

// tainted returns the virtual servers that must not get real servers yet: their stale elements could not be deleted,
// now or earlier.
func (s *Speaker) tainted(todo *work) map[ipvs.Key][]ipvs.Element {
	failed := s.failed.elements
	if s.failed.all {
		failed = s.known.filter
	}
	out := s.stale(todo.elements)
	maps.Copy(out, s.stale(failed))
	return out
}

// dropServers deletes the unwanted real servers of some virtual servers.
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

// kept returns the existing virtual server without its unwanted real servers.
func kept(have, want ipvs.VirtualServer) ipvs.VirtualServer {
	have.RealServers = maps.Clone(have.RealServers)
	maps.DeleteFunc(have.RealServers, func(at netip.AddrPort, _ ipvs.RealServer) bool { return !has(want.RealServers, at) })
	return have
}
