package plan

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
	b, d := &p.bgp, p.desired
	route, conflicts := p.route(v, prefix)
	if !maps.Equal(d.BGP.Routes[prefix], route) {
		p.changed.Routes[prefix] = why
	}
	incremental.Set(d.BGP.Routes, prefix, route, len(route) > 0)
	before := b.conflicts[prefix]
	incremental.Set(b.conflicts, prefix, conflicts, len(conflicts) > 0)
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
	b := &p.bgp
	ads := slices.Sorted(maps.Keys(b.counts[prefix]))
	v4 := prefix.Addr().Is4()
	if len(ads) == 1 {
		if route, known := b.alone[adFamily{ads[0], v4}]; known {
			return route, nil
		}
	}
	route := Route{}
	var conflicts []LocalPrefs
	for _, peer := range b.peers {
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
		internal := p.desired.BGP.Peers[peer].internal() // external peers receive no localPref
		for _, name := range announcing {
			if internal && pref(v.BGPAdvertisements[name].Attributes) != pref(attributes) {
				conflicts = append(conflicts, LocalPrefs{Lower: lowest, Higher: name})
			}
		}
		if b.decommission.state == draining {
			attributes = lastResort(attributes)
		}
		route[peer] = attributes
	}
	if len(ads) == 1 {
		b.alone[adFamily{ads[0], v4}] = route
	}
	slices.SortFunc(conflicts, func(c, d LocalPrefs) int {
		return cmp.Or(cmp.Compare(c.Lower, d.Lower), cmp.Compare(c.Higher, d.Higher))
	})
	return route, slices.Compact(conflicts)
}

const (
	// gracefulShutdown is GRACEFUL_SHUTDOWN (RFC 8326, 6), lastPref the localPref with it. RFC 8326, 4.1 recommends 0,
	// but GoBGP's policies cannot set that (internal/pkg/table/policy.go, NewLocalPrefAction).
	gracefulShutdown = 65535 << 16
	lastPref         = 1
	// defaultPref is the localPref for internal peers if an advertisement has none.
	defaultPref = 100
)

// pref returns the localPref for internal peers.
func pref(a view.Attributes) uint32 { return cmp.Or(a.LocalPref, defaultPref) }

// lastResort returns the attributes of a route that is about to be withdrawn, so that routers prefer another (RFC
// 8326).
func lastResort(a view.Attributes) view.Attributes {
	a.Unite(view.Attributes{Communities: view.NewCommunitySet(gracefulShutdown)})
	a.LocalPref = lastPref
	return a
}
