package dataplane

import (
	"context"
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// removeOutdated deletes filter elements that treat clients of remaining virtual servers in an outdated way: no longer
// masqueraded, or from fewer sources. First it deletes the unwanted real servers, which may need these elements. New
// real servers come later: the address may belong to another Service now, whose clients must never be treated so. If
// the kernel refuses, setVirtualServers adds none.
func (d *DataPlane) removeOutdated(ctx context.Context, todo *Work) {
	outdated := d.outdated(todo.Elements)
	if len(outdated) == 0 {
		return
	}
	d.removeRealServers(&d.known.internal, d.wantedInternally, "cluster-internal ", outdated, todo)
	d.removeRealServers(&d.known.table, d.wanted, "", outdated, todo)
	var changes []ipvs.FilterChange
	for _, elements := range outdated {
		for _, e := range elements {
			changes = append(changes, ipvs.FilterChange{Element: e, Delete: true})
		}
	}
	d.updateFilter(ctx, changes)
}

// outdated returns, for each wanted virtual server, the filter elements about its clients that exist and are no longer
// needed. It returns none while the filter is not in force.
func (d *DataPlane) outdated(elements map[ipvs.Element]struct{}) map[ipvs.Key][]ipvs.Element {
	out := map[ipvs.Key][]ipvs.Element{}
	if !d.known.intact {
		return out
	}
	for e := range elements {
		if !has(d.known.filter, e) || d.wantsElement(e) || !d.wantsKey(e.Key) {
			continue
		}
		switch e.Set {
		case ipvs.Masqueraded, ipvs.MasqueradedUnlessPod:
			out[e.Key] = append(out[e.Key], e)
		case ipvs.Allowed: // if all sources are allowed now, this must not be deleted before the restriction
			if d.wantsElement(ipvs.Element{Set: ipvs.Restricted, Key: e.Key}) {
				out[e.Key] = append(out[e.Key], e)
			}
		}
	}
	return out
}

// notReplaceable returns the virtual servers that must not get real servers yet: their outdated elements could not be
// deleted, now or earlier.
func (d *DataPlane) notReplaceable(todo *Work) map[ipvs.Key][]ipvs.Element {
	failed := d.failed.Elements
	if d.failed.All {
		failed = d.known.filter
	}
	out := d.outdated(todo.Elements)
	maps.Copy(out, d.outdated(failed))
	return out
}

// removeRealServers deletes the unwanted real servers of some virtual servers.
func (d *DataPlane) removeRealServers(t *servers, desired lookup, kind string, of map[ipvs.Key][]ipvs.Element, todo *Work) {
	keys, want := map[ipvs.Key]struct{}{}, ipvs.Table{}
	for key := range of {
		have, exists := t.have[key]
		if !exists {
			continue
		}
		keys[key] = struct{}{}
		if vs, wanted := desired(key); wanted {
			want[key] = withoutUnwanted(have, vs)
		}
	}
	d.change(t, keys, want, kind, todo)
}

// kept returns the existing virtual server without its unwanted real servers.
func withoutUnwanted(have, want ipvs.VirtualServer) ipvs.VirtualServer {
	have.RealServers = maps.Clone(have.RealServers)
	maps.DeleteFunc(have.RealServers, func(at netip.AddrPort, _ ipvs.RealServer) bool { return !has(want.RealServers, at) })
	return have
}
