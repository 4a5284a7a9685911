package routes

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// evaluateAddress returns the outcome for an address and the advertisements that announce it. announced is set if it is
// announced so far. covered is set if an advertisement covers it on this node; otherwise only the reason matters.
func (p *Planner) evaluateAddress(v *view.View, addr netip.Addr, s sharers, announced bool) (reason view.Reason, by []contribution, covered bool) {
	if len(s.labels) == 0 {
		return view.NoService, nil, false
	}
	node := p.node
	for _, name := range p.ads {
		ad := v.BGPAdvertisements[name]
		if len(ad.Missing) > 0 || !ad.Covers(s.labels) || slices.ContainsFunc(s.pools, func(pool string) bool { return !ad.Matches(pool, v.Pools[pool].Labels, node.Labels) }) {
			continue
		}
		covered = true
		if slices.ContainsFunc(p.peers, func(peer string) bool { return p.receives(ad, peer, addr.Is4()) }) {
			by = append(by, contribution{name, ad.Prefix(addr)})
		}
	}
	switch why, unable := v.Unable[addr]; {
	case !covered:
		return view.NoAdvertisement, nil, false
	case unable && !why.OnlyAnswering():
		return why, nil, true
	case !s.here:
		return view.NoLocalEndpoint, nil, true
	case len(by) == 0:
		return view.NoPeer, nil, true
	case node.NetworkUnavailable, p.decommission.state == gone, p.decommission.state == draining && !announced: // last: announced must not hide a reason that stays
		return view.Excluded, nil, true
	case p.decommission.state == draining:
		return view.GracefulShutdown, by, true
	case !s.anywhere:
		return view.NoEndpoint, by, true
	}
	return view.Announced, by, true
}

// receives reports whether a peer receives an advertisement and accepts the family.
func (p *Planner) receives(ad view.BGPAdvertisement, peer string, v4 bool) bool {
	session := p.routing.BGP.Peers[peer]
	return (len(ad.Peers) == 0 || slices.Contains(ad.Peers, peer)) && (v4 && session.IPv4 || !v4 && session.IPv6)
}
