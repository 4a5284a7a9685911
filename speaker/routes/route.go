package routes

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// decideRoute updates the route of a prefix in the desired state.
func (p *Planner) decideRoute(v *view.View, prefix netip.Prefix, why view.Reason) {
	d := &p.routing
	route, conflicts := p.route(v, prefix)
	if !maps.Equal(d.BGP.Routes[prefix], route) {
		p.changed.Routes[prefix] = why
	}
	incremental.Set(d.BGP.Routes, prefix, route, len(route) > 0)
	before := p.conflicts[prefix]
	incremental.Set(p.conflicts, prefix, conflicts, len(conflicts) > 0)
	if slices.Equal(before, conflicts) {
		return
	}
	p.changed.LocalPrefs = true
	for _, c := range conflicts {
		d.LocalPrefs[c]++
	}
	for _, c := range before {
		incremental.Set(d.LocalPrefs, c, d.LocalPrefs[c]-1, d.LocalPrefs[c] > 1)
	}
}

// route returns the attributes of a prefix for each peer, and the contradicting advertisements.
func (p *Planner) route(v *view.View, prefix netip.Prefix) (Route, []LocalPrefs) {
	ads := slices.Sorted(maps.Keys(p.counts[prefix]))
	v4 := prefix.Addr().Is4()
	if len(ads) == 1 {
		if route, known := p.alone[adFamily{ads[0], v4}]; known {
			return route, nil
		}
	}
	route := Route{}
	var conflicts []LocalPrefs
	for _, peer := range p.peers {
		var lowest string // the advertisement with the lowest localPref
		var announcing []string
		attributes := view.Attributes{}
		for _, name := range ads {
			ad := v.BGPAdvertisements[name]
			if !p.receives(ad, peer, v4) {
				continue
			}
			if len(announcing) == 0 || pref(ad.Attributes) < pref(v.BGPAdvertisements[lowest].Attributes) {
				lowest, attributes.LocalPref = name, ad.Attributes.LocalPref
			}
			attributes.Unite(ad.Attributes)
			announcing = append(announcing, name)
		}
		if len(announcing) == 0 {
			continue
		}
		internal := p.routing.BGP.Peers[peer].internal() // external peers receive no localPref
		for _, name := range announcing {
			if internal && pref(v.BGPAdvertisements[name].Attributes) != pref(attributes) {
				conflicts = append(conflicts, LocalPrefs{Lower: lowest, Higher: name})
			}
		}
		if p.decommission.state == draining {
			attributes = lastResort(attributes)
		}
		route[peer] = attributes
	}
	if len(ads) == 1 {
		p.alone[adFamily{ads[0], v4}] = route
	}
	slices.SortFunc(conflicts, func(c, d LocalPrefs) int {
		return cmp.Or(cmp.Compare(c.Lower, d.Lower), cmp.Compare(c.Higher, d.Higher))
	})
	return route, slices.Compact(conflicts)
}
