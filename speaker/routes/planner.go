package routes

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// Planner plans the sessions and routes of a node incrementally: the cost of a plan is proportional to the change.
// It is used by one goroutine.
type Planner struct {
	name    string // of the node
	plane   view.DataPlane
	routing Routing
	changed ChangedRouting // of the plan in progress

	peers        []string // with a session, sorted
	ads          []string // sorted
	decommission decommission
	// node is the last known state of this node. The deletion of a Node object ends no session and does not stop a
	// decommissioning; one that returns without an address keeps the old one.
	node view.Node
	// addresses are the pool addresses of each Service, byAddr the Services of each address.
	addresses map[pools.ServiceKey][]netip.Addr
	byAddr    incremental.Index[netip.Addr, pools.ServiceKey]
	addrs     map[netip.Addr]routedAddress
	// counts is the number of addresses behind a prefix, by the name of the advertisement.
	counts map[netip.Prefix]map[string]int
	// alone is the route of an advertisement that shares its prefix with no other; all such prefixes of a family have
	// the same.
	alone map[adFamily]Route
	// conflicts are those of each prefix, sorted.
	conflicts map[netip.Prefix][]LocalPrefs
}

// New returns a Planner for a node without a plan; its first Plan needs touched.All.
func New(node string, plane view.DataPlane) *Planner {
	return &Planner{
		name: node, plane: plane, routing: NewRouting(),
		addresses: map[pools.ServiceKey][]netip.Addr{}, byAddr: incremental.Index[netip.Addr, pools.ServiceKey]{},
		addrs: map[netip.Addr]routedAddress{}, counts: map[netip.Prefix]map[string]int{}, alone: map[adFamily]Route{},
		conflicts: map[netip.Prefix][]LocalPrefs{},
	}
}

// Restart returns a planner without a plan that keeps only what may influence one: the last known Node, the progress of
// its decommissioning, and which addresses are announced.
func (p *Planner) Restart(plane view.DataPlane) *Planner {
	fresh := New(p.name, plane)
	fresh.decommission, fresh.node = p.decommission, p.node
	for addr, a := range p.addrs {
		fresh.addrs[addr] = routedAddress{announced: a.announced}
	}
	return fresh
}

// Wake returns when to plan again without a change, zero for never.
func (p *Planner) Wake() time.Time { return p.decommission.until }

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

// Plan plans the sessions and routes of the node, after the data plane is planned. touched must name everything in the
// View that changed since the last call. The Routing belongs to the planner, and the next call changes it.
func (p *Planner) Plan(v *view.View, touched view.Touched, now time.Time) (Routing, ChangedRouting) {
	p.changed = newChangedRouting()
	_, own := touched.Nodes[p.name]
	all := own || touched.All || touched.BGPAdvertisements
	if node, exists := v.Nodes[p.name]; exists {
		p.node = knownAs(node, p.node)
	}
	if own || touched.All || len(touched.BGPPeers) > 0 {
		all = p.planPeers(v) || all
	}
	all = p.decommission.update(p.node, now) || all
	p.changed.NodeDecommissioning = p.routing.BGP.NodeDecommissioning != p.node.Decommissioning()
	p.routing.BGP.NodeDecommissioning = p.node.Decommissioning()
	addrs := p.touchedAddresses(v, touched)
	why := map[netip.Prefix]view.Reason{} // of prefixes whose route may differ
	if all {
		p.ads = slices.Sorted(maps.Keys(v.BGPAdvertisements))
		clear(p.alone)
		for addr := range p.addrs {
			addrs[addr] = struct{}{}
		}
		for addr := range p.byAddr {
			addrs[addr] = struct{}{}
		}
		for prefix := range p.counts {
			why[prefix] = view.Announced
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) { // the reason of the last one is reported
		p.decideAddress(v, addr, why)
	}
	for prefix, reason := range why {
		p.decideRoute(v, prefix, reason)
	}
	return p.routing, p.changed
}

// touchedAddresses records the present addresses of changed Services and returns the addresses to decide on.
func (p *Planner) touchedAddresses(v *view.View, touched view.Touched) map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	services, changed := p.plane.Changed()
	for key := range services {
		for _, addr := range p.addresses[key] {
			p.byAddr.Remove(addr, key)
			out[addr] = struct{}{}
		}
		var now []netip.Addr
		for _, a := range p.plane.Service(key).Addresses {
			if a.Kind == view.LoadBalancer {
				now = append(now, a.IP)
				p.byAddr.Add(a.IP, key)
				out[a.IP] = struct{}{}
			}
		}
		incremental.Set(p.addresses, key, now, len(now) > 0)
	}
	for _, addrs := range []map[netip.Addr]struct{}{changed, touched.Unable} {
		for addr := range addrs {
			if _, known := p.byAddr[addr]; known {
				out[addr] = struct{}{}
			}
		}
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

// decideAddress selects the prefixes that announce an address, and adds changed prefixes to why.
func (p *Planner) decideAddress(v *view.View, addr netip.Addr, why map[netip.Prefix]view.Reason) {
	d := &p.routing
	before := p.addrs[addr]
	s := p.sharers(v, addr, before.announced)
	reason, by, covered := p.evaluateAddress(v, addr, s, before.announced)
	after := routedAddress{announced: len(by) > 0, by: by}
	incremental.Set(p.addrs, addr, after, after.announced)
	for _, c := range by {
		if !slices.Contains(before.by, c) {
			p.count(c, 1)
			why[c.prefix] = reason
		}
	}
	for _, c := range before.by {
		if slices.Contains(by, c) {
			continue
		}
		p.count(c, -1)
		why[c.prefix] = reason
	}
	routed := Routed{Reason: reason}
	for _, c := range by {
		routed.Prefixes = append(routed.Prefixes, c.prefix)
	}
	slices.SortFunc(routed.Prefixes, netip.Prefix.Compare)
	routed.Prefixes = slices.Compact(routed.Prefixes)
	was, had := d.Routed[addr]
	if had == covered && (!had || was.equal(routed)) {
		return
	}
	p.changed.Routed[addr] = struct{}{}
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

func (p *Planner) count(c contribution, n int) {
	counts := p.counts[c.prefix]
	if counts == nil {
		counts = map[string]int{}
		p.counts[c.prefix] = counts
	}
	n += counts[c.ad]
	incremental.Set(counts, c.ad, n, n > 0)
	if len(counts) == 0 {
		delete(p.counts, c.prefix)
	}
}

// sharers are the Services on one address.
type sharers struct {
	labels []map[string]string
	pools  []string
	// here is set if this node may take traffic of the address: each port with policy Local that has an endpoint has one
	// here, and not only a new one that should wait. anywhere is set if one of the Services has an endpoint.
	here, anywhere bool
}

// sharers collects the Services that really have the address on this data plane, with their ports of its family. Unless
// the address is announced already, new endpoints do not count while another node could take its traffic.
func (p *Planner) sharers(v *view.View, addr netip.Addr, announced bool) sharers {
	var out sharers
	served, open := p.plane.IsLocal(addr), false
	var local []view.PortNodes // of the Services with policy Local
	for key := range p.byAddr[addr] {
		svc, part := v.Services[key], p.plane.Service(key)
		i := slices.IndexFunc(part.Addresses, func(a view.Address) bool { return a.IP == addr && a.Kind == view.LoadBalancer })
		if i < 0 || !served && !part.Addresses[i].AnnounceOnly {
			continue
		}
		out.labels = append(out.labels, svc.Labels)
		if pool := part.Addresses[i].Pool; !slices.Contains(out.pools, pool) {
			out.pools = append(out.pools, pool)
		}
		ports, needed := part.Ports(addr.Is4())
		out.anywhere, open = out.anywhere || len(ports) > 0, open || !needed
		if needed {
			local = append(local, ports...)
		}
	}
	out.here = (open || len(local) > 0) && view.Serves(local, p.name) && (announced || !p.waits(local))
	return out
}

// waits reports whether the first route of an address waits: the endpoints of a port on this node are new, and those on
// another node, which serves all ports, are not.
func (p *Planner) waits(local []view.PortNodes) bool {
	isNew := func(node string) bool {
		return slices.ContainsFunc(local, func(ports view.PortNodes) bool { _, is := ports.Arriving[node]; return is })
	}
	return isNew(p.name) && slices.ContainsFunc(local[0].All(), func(node string) bool {
		return node != "" && !isNew(node) && view.Serves(local, node)
	})
}

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
