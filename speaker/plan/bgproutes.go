package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// Routed is the outcome for an address that a BGPAdvertisement covers.
type Routed struct {
	// Reason is Announced, NoEndpoint or GracefulShutdown if it is announced, else why it is not.
	Reason view.Reason
	// Prefixes are the announced ones, sorted; none if it is not announced.
	Prefixes []netip.Prefix
	// Report is set if it is not served as expected and this node is the one to report it.
	Report bool
}

func (r Routed) equal(s Routed) bool {
	return r.Reason == s.Reason && r.Report == s.Report && slices.Equal(r.Prefixes, s.Prefixes)
}

// LocalPrefs are two BGPAdvertisements of the same prefix to one internal peer with different values of localPref. The
// lower one counts.
type LocalPrefs struct{ Lower, Higher string }

// bgpPlan is the Planner's state of routes.
type bgpPlan struct {
	peers        []string // with a session, sorted
	ads          []string // sorted
	decommission decommission
	// node is the last known state of this node. The deletion of a Node object ends no session and does not stop a
	// decommissioning; one that returns without an address keeps the old one.
	node view.Node
	// services are the pool addresses of each Service, byAddr the Services of each address.
	services map[pools.ServiceKey][]netip.Addr
	byAddr   incremental.Index[netip.Addr, pools.ServiceKey]
	addrs    map[netip.Addr]routedAddress
	// counts is the number of addresses behind a prefix, by the name of the advertisement.
	counts map[netip.Prefix]map[string]int
	// alone is the route of an advertisement that shares its prefix with no other; all such prefixes of a family have
	// the same.
	alone map[adFamily]Route
	held  held
	// conflicts are those of each prefix, sorted.
	conflicts map[netip.Prefix][]LocalPrefs
}

// routedAddress is an address with its prefix by each advertisement.
type routedAddress struct {
	announced bool
	by        []contribution // sorted by advertisement
}

type adFamily struct {
	ad string
	v4 bool
}

type contribution struct {
	ad     string
	prefix netip.Prefix
}

func newBGPPlan() bgpPlan {
	return bgpPlan{
		services: map[pools.ServiceKey][]netip.Addr{}, byAddr: incremental.Index[netip.Addr, pools.ServiceKey]{}, addrs: map[netip.Addr]routedAddress{},
		counts: map[netip.Prefix]map[string]int{}, alone: map[adFamily]Route{}, conflicts: map[netip.Prefix][]LocalPrefs{},
		held: newHeld(),
	}
}

// planBGP plans the peers and routes of this node, after the Services.
func (p *Planner) planBGP(v *view.View, touched view.Touched, now time.Time) {
	if !p.options.BGP {
		return
	}
	b := &p.bgp
	_, own := touched.Nodes[p.options.Node]
	all := own || touched.All || touched.BGPAdvertisements
	if node, exists := v.Nodes[p.options.Node]; exists {
		b.node = knownAs(node, b.node)
	}
	if own || touched.All || len(touched.BGPPeers) > 0 {
		all = p.planPeers(v) || all
	}
	all = b.decommission.update(b.node, now) || all
	p.changed.NodeDecommissioning = p.desired.BGP.NodeDecommissioning != b.node.Decommissioning()
	p.desired.BGP.NodeDecommissioning = b.node.Decommissioning()
	addrs := p.touchedAddresses(v, touched)
	p.reevaluate(v, touched, all, addrs)
	why := map[netip.Prefix]view.Reason{} // of prefixes whose route may differ
	if all {
		b.ads = slices.Sorted(maps.Keys(v.BGPAdvertisements))
		clear(b.alone)
		for addr := range b.addrs {
			addrs[addr] = struct{}{}
		}
		for addr := range b.byAddr {
			addrs[addr] = struct{}{}
		}
		for prefix := range b.counts {
			why[prefix] = view.Announced
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) { // the reason of the last one is reported
		p.decideAddress(v, addr, why)
	}
	for prefix, reason := range why {
		p.decideRoute(v, prefix, reason)
	}
}

// touchedAddresses records the present addresses of changed Services and returns the addresses to decide on.
func (p *Planner) touchedAddresses(v *view.View, touched view.Touched) map[netip.Addr]struct{} {
	b, out := &p.bgp, map[netip.Addr]struct{}{}
	for key := range p.changed.Services {
		for _, addr := range b.services[key] {
			b.byAddr.Remove(addr, key)
			out[addr] = struct{}{}
		}
		var now []netip.Addr
		for _, a := range p.services[key].Addresses {
			if a.Kind == view.LoadBalancer {
				now = append(now, a.IP)
				b.byAddr.Add(a.IP, key)
				out[a.IP] = struct{}{}
			}
		}
		incremental.Set(b.services, key, now, len(now) > 0)
	}
	for _, addrs := range []map[netip.Addr]struct{}{p.changed.Addrs, touched.Unable} {
		for addr := range addrs {
			if _, known := b.byAddr[addr]; known {
				out[addr] = struct{}{}
			}
		}
	}
	return out
}

// decideAddress selects the prefixes that announce an address, and adds changed prefixes to why.
func (p *Planner) decideAddress(v *view.View, addr netip.Addr, why map[netip.Prefix]view.Reason) {
	b, d := &p.bgp, p.desired
	before := b.addrs[addr]
	s := p.sharers(v, addr, before.announced)
	reason, by, covered := p.evaluateAddress(v, addr, s, before.announced)
	after := routedAddress{announced: len(by) > 0, by: by}
	incremental.Set(b.addrs, addr, after, after.announced)
	for _, c := range by {
		if !slices.Contains(before.by, c) {
			b.count(c, 1)
			why[c.prefix] = reason
		}
	}
	for _, c := range before.by {
		if slices.Contains(by, c) {
			continue
		}
		b.count(c, -1)
		why[c.prefix] = reason
	}
	routed := Routed{Reason: reason, Report: p.mustReport(v, addr, s, reason)}
	for _, c := range by {
		routed.Prefixes = append(routed.Prefixes, c.prefix)
	}
	slices.SortFunc(routed.Prefixes, netip.Prefix.Compare)
	routed.Prefixes = slices.Compact(routed.Prefixes)
	was, had := d.Routed[addr]
	if had == covered && (!had || was.equal(routed)) {
		return
	}
	p.changed.Addrs[addr] = struct{}{}
	under := incremental.Index[netip.Prefix, netip.Addr](d.Under)
	for _, prefix := range was.Prefixes {
		under.Remove(prefix, addr)
	}
	for _, prefix := range routed.Prefixes {
		if !prefix.IsSingleIP() {
			under.Add(prefix, addr)
		}
	}
	incremental.Set(d.Routed, addr, routed, covered)
}

func (b *bgpPlan) count(c contribution, n int) {
	counts := b.counts[c.prefix]
	if counts == nil {
		counts = map[string]int{}
		b.counts[c.prefix] = counts
	}
	n += counts[c.ad]
	incremental.Set(counts, c.ad, n, n > 0)
	if len(counts) == 0 {
		delete(b.counts, c.prefix)
	}
}

// evaluateAddress returns the outcome for an address and the advertisements that announce it. announced is set if it is
// announced so far. covered is set if an advertisement covers it on this node; otherwise only the reason matters.
func (p *Planner) evaluateAddress(v *view.View, addr netip.Addr, s sharers, announced bool) (reason view.Reason, by []contribution, covered bool) {
	if len(s.labels) == 0 {
		return view.NoService, nil, false
	}
	node := p.bgp.node
	for _, name := range p.bgp.ads {
		ad := v.BGPAdvertisements[name]
		if len(ad.Missing) > 0 || !ad.Covers(s.labels) || slices.ContainsFunc(s.pools, func(pool string) bool { return !ad.Matches(pool, v.Pools[pool].Labels, node.Labels) }) {
			continue
		}
		covered = true
		if slices.ContainsFunc(p.bgp.peers, func(peer string) bool { return p.receives(ad, peer, addr.Is4()) }) {
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
	case node.NetworkUnavailable, p.bgp.decommission.state == gone, p.bgp.decommission.state == draining && !announced: // last: announced must not hide a reason that stays
		return view.Excluded, nil, true
	case p.bgp.decommission.state == draining:
		return view.GracefulShutdown, by, true
	case !s.anywhere:
		return view.NoEndpoint, by, true
	}
	return view.Announced, by, true
}

// receives reports whether a peer receives an advertisement and accepts the family.
func (p *Planner) receives(ad view.BGPAdvertisement, peer string, v4 bool) bool {
	session := p.desired.BGP.Peers[peer]
	return (len(ad.Peers) == 0 || slices.Contains(ad.Peers, peer)) && (v4 && session.IPv4 || !v4 && session.IPv6)
}

// sharers are the Services on one address.
type sharers struct {
	labels []map[string]string
	pools  []string
	// here is set if this node may take traffic of the address: each Service with policy Local that has an endpoint has
	// one here, and not only a new one that should wait. anywhere is set if one of the Services has an endpoint.
	here, anywhere bool
	// could are the nodes with endpoints if here is not set; this node may be one of them.
	could map[string]struct{}
}

// sharers collects the Services that really have the address on this data plane. A terminating endpoint counts for
// policy Local while the Service has no ready one (announce.md, L2.2, BGP.2). Unless the address is announced already,
// new endpoints do not count while another node could take its traffic.
func (p *Planner) sharers(v *view.View, addr netip.Addr, announced bool) sharers {
	var out sharers
	_, served := p.desired.Local[addr]
	open, local, lacks := false, false, false
	var ends []map[string]struct{} // of the Services with policy Local that have endpoints
	var arriving []map[view.NodeFamily]struct{}
	for key := range p.bgp.byAddr[addr] {
		svc, part := v.Services[key], p.services[key]
		i := slices.IndexFunc(part.Addresses, func(a view.Address) bool { return a.IP == addr && a.Kind == view.LoadBalancer })
		if i < 0 || !served && !part.Addresses[i].AnnounceOnly {
			continue
		}
		out.labels = append(out.labels, svc.Labels)
		if pool := part.Addresses[i].Pool; !slices.Contains(out.pools, pool) {
			out.pools = append(out.pools, pool)
		}
		nodes := part.Ready
		if len(nodes) == 0 {
			nodes = part.Usable
		}
		out.anywhere = out.anywhere || len(nodes) > 0
		_, here := nodes[p.options.Node]
		switch {
		case !svc.NeedsLocalEndpoint():
			open = true
		case len(nodes) > 0:
			local, lacks = true, lacks || !here
			ends = append(ends, nodes)
			if len(part.Arriving) > 0 {
				arriving = append(arriving, part.Arriving)
			}
		}
	}
	out.here = (open || local) && !lacks
	if out.here && !announced && len(arriving) > 0 {
		out.here = !p.waits(addr.Is4(), common(ends), arriving)
	}
	if !out.here {
		out.could = common(ends)
	}
	return out
}

// waits reports whether the first route of an address waits: the endpoints of a Service on this node are new, and those
// on another node, which could take the traffic of all Services, are not.
func (p *Planner) waits(v4 bool, could map[string]struct{}, arriving []map[view.NodeFamily]struct{}) bool {
	isNew := func(node string) bool {
		return slices.ContainsFunc(arriving, func(nodes map[view.NodeFamily]struct{}) bool {
			_, is := nodes[view.NodeFamily{Node: node, IPv4: v4}]
			return is
		})
	}
	if !isNew(p.options.Node) {
		return false
	}
	for node := range could {
		if node != "" && !isNew(node) {
			return true
		}
	}
	return false
}

// common returns the intersection of the sets.
func common(sets []map[string]struct{}) map[string]struct{} {
	switch len(sets) {
	case 0:
		return nil
	case 1:
		return sets[0]
	}
	out := maps.Clone(sets[0])
	for _, set := range sets[1:] {
		maps.DeleteFunc(out, func(key string, _ struct{}) bool { _, is := set[key]; return !is })
	}
	return out
}

// decommission is the progress of decommissioning, during which routers must first find another route (RFC 8326).
type decommission struct {
	state decommissionState
	until time.Time // while draining
}

type decommissionState uint8

const (
	staying decommissionState = iota
	draining
	gone
)

// drainTime is how long a decommissioning node announces its routes with GRACEFUL_SHUTDOWN.
const drainTime = 5 * time.Second

// update updates the state and reports whether it changed.
func (g *decommission) update(n view.Node, now time.Time) bool {
	before := g.state
	switch decommissioning := n.Excluded || n.BeingDeleted; {
	case !decommissioning:
		*g = decommission{}
	case g.state == staying:
		*g = decommission{state: draining, until: now.Add(drainTime)}
	case g.state == draining && !now.Before(g.until):
		*g = decommission{state: gone}
	}
	return g.state != before
}
