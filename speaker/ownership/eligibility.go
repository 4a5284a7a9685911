package ownership

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// unit is a VirtualIP with the state of its addresses and Services in the View.
type unit struct {
	view  *view.View
	self  string // this node
	addrs []view.Address
	// ads are the advertisements that cover every one of its Services.
	ads []view.Advertisement
	// on are the interfaces of this node for each address, sorted.
	on map[netip.Addr][]string
	// local are the ports of its Services with policy Local, in the families of their addresses. needed are those with an
	// endpoint on a node that may own the VirtualIP: the owner needs one of each.
	local  []localPort
	needed []view.PortNodes
	// direct is set if a Service with policy Local is forwarded directly: a node that cannot use tunnels, and so has no
	// endpoint of it, may not answer.
	direct bool
	// open is set if a node without endpoints may answer, too: a Service has policy Cluster.
	open bool
}

// localPort is a port of a Service with policy Local in a family.
type localPort struct {
	view.PortNodes
	service pools.ServiceKey
	v4      bool
}

// unit collects the addresses of a VirtualIP that one of its Services really has on this data plane.
func (p *Planner) unit(v *view.View, vip view.VIP) unit {
	u := unit{view: v, self: p.node, on: map[netip.Addr][]string{}}
	wanted := map[netip.Addr]string{}
	var services []map[string]string
	for _, key := range vip.Services {
		svc, ok := v.Services[key]
		if !ok {
			continue
		}
		part, held := p.plane.Service(key), map[bool]struct{}{} // its families
		for _, a := range part.Addresses {
			if (p.plane.IsLocal(a.IP) || a.AnnounceOnly) && slices.Contains(vip.Addresses, a.IP) {
				wanted[a.IP], held[a.IP.Is4()] = max(wanted[a.IP], a.Pool), struct{}{} // whichever comes first
			}
		}
		if len(held) == 0 {
			continue
		}
		services = append(services, svc.Labels)
		u.direct = u.direct || part.DirectLocal
		for v4 := range held {
			ports, local := part.Ports(v4)
			u.open = u.open || !local
			for i := 0; local && i < len(ports); i++ {
				u.local = append(u.local, localPort{ports[i], key, v4})
			}
		}
	}
	for _, ad := range v.Advertisements {
		if ad.Covers(services) {
			u.ads = append(u.ads, ad)
		}
	}
	labels := v.Nodes[p.node].Labels
	for _, ip := range slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare) {
		a := view.Address{IP: ip, Pool: wanted[ip]}
		u.addrs = append(u.addrs, a)
		u.on[ip] = u.interfaces(a, labels)
	}
	return u
}

// able returns noReason if the API objects permit a node to answer, else the reason: the node must not be excluded, and
// every address must be advertised there.
func (u unit) able(node string) view.Reason {
	n := u.view.Nodes[node]
	if n.Excluded || n.BeingDeleted || n.NetworkUnavailable {
		return view.Excluded
	}
	if !u.advertisedAt(n.Labels) {
		return view.NoAdvertisement
	}
	return noReason
}

// whereLocal returns the nodes with endpoints of its Services with policy Local.
func (u unit) whereLocal() []LocalPort {
	var out []LocalPort
	for _, l := range u.local {
		out = append(out, LocalPort{Service: l.service, Port: l.Port, IPv4: l.v4, Nodes: l.All()})
	}
	slices.SortFunc(out, LocalPort.compare)
	return out
}

// hasEndpoints reports whether a node has an endpoint of each needed port; with terminating set, terminating ones that
// still serve count, too.
func (u unit) hasEndpoints(node string, terminating bool) bool {
	if !u.open && len(u.needed) == 0 {
		return false
	}
	if u.direct && node != u.self && !u.view.Members.Directs(node, slices.ContainsFunc(u.addrs, func(a view.Address) bool { return a.IP.Is6() })) {
		return false
	}
	return view.HaveEach(u.needed, node, terminating)
}

// advertisedAt reports whether every address is advertised on a node with these labels.
func (u unit) advertisedAt(labels map[string]string) bool {
	for _, a := range u.addrs {
		if !u.advertised(a.Pool, labels) {
			return false
		}
	}
	return true
}

func (u unit) advertised(pool string, labels map[string]string) bool {
	return slices.ContainsFunc(u.ads, func(ad view.Advertisement) bool { return ad.Matches(pool, u.view.Pools[pool].Labels, labels) })
}

// interfaces returns where this node announces an address, according to all of its advertisements: on the named
// interfaces, or on those whose subnet contains it. Of interfaces with one subnet it returns one: a named one, or that
// of the kernel's route.
func (u unit) interfaces(a view.Address, labels map[string]string) []string {
	named := map[string]bool{} // false: by its subnet
	for _, ad := range u.ads {
		if !ad.Matches(a.Pool, u.view.Pools[a.Pool].Labels, labels) {
			continue
		}
		for _, name := range ad.Interfaces {
			if _, up := u.view.Links[name]; up {
				named[name] = true
			}
		}
		if len(ad.Interfaces) > 0 {
			continue
		}
		for name, link := range u.view.Links {
			if !named[name] && slices.ContainsFunc(link.Subnets, func(p netip.Prefix) bool { return p.Contains(a.IP) }) {
				named[name] = false
			}
		}
	}
	if len(named) < 2 {
		return slices.Sorted(maps.Keys(named))
	}
	bySegment := map[string]string{} // the segment by its interface with the kernel's route
	for _, name := range slices.Sorted(maps.Keys(named)) {
		segment := name
		for subnet, other := range u.view.Links[name].Elsewhere {
			if subnet.Contains(a.IP) {
				segment = other
			}
		}
		before, found := bySegment[segment]
		if !found || named[name] && !named[before] || named[name] == named[before] && name == segment {
			bySegment[segment] = name
		}
	}
	return slices.Sorted(maps.Values(bySegment))
}

// missing returns the interfaces that the advertisements for this node name and that are not up, and those with a
// subnet that are.
func (u unit) missing() (named, up []string) {
	for _, ad := range u.ads {
		if ad.On(u.view.Nodes[u.self].Labels) {
			named = append(named, ad.Interfaces...)
		}
	}
	named = slices.DeleteFunc(named, func(name string) bool { _, is := u.view.Links[name]; return is })
	for name, link := range u.view.Links {
		if len(link.Subnets) > 0 {
			up = append(up, name)
		}
	}
	slices.Sort(named)
	slices.Sort(up)
	return slices.Compact(named), up
}

// usable returns the interfaces of an address on which this node receives members and is not isolated.
func (u unit) usable(addr netip.Addr) []string {
	m := &u.view.Members
	return slices.DeleteFunc(slices.Clone(u.on[addr]), func(name string) bool {
		_, isolated := m.Isolated[name]
		_, listens := m.Segments[name]
		return isolated || !listens && m.Segments != nil
	})
}

// isolatedInPart reports whether this node is isolated on some interface of an address and can still answer for each
// address on another one.
func (u unit) isolatedInPart() bool {
	part := false
	for _, a := range u.addrs {
		if len(u.usable(a.IP)) == 0 {
			return false
		}
		part = part || slices.ContainsFunc(u.on[a.IP], func(name string) bool {
			_, isolated := u.view.Members.Isolated[name]
			return isolated
		})
	}
	return part
}

// allUsable returns the usable interfaces of all addresses.
func (u unit) allUsable() map[string]struct{} {
	out := map[string]struct{}{}
	for _, a := range u.addrs {
		for _, name := range u.usable(a.IP) {
			out[name] = struct{}{}
		}
	}
	return out
}

// ownBlocker returns the blocker of this node, independent of the other nodes.
func (d *election) ownBlocker() view.Reason {
	switch {
	case len(d.addrs) == 0:
		return view.NoService
	case len(d.vip.Nodes) == 0:
		return view.NoEligibleNode
	case d.view.Members.Observer:
		return view.Observer
	case !d.advertisedAt(d.view.Nodes[d.self].Labels):
		return view.NoAdvertisement
	}
	for _, a := range d.addrs {
		if len(d.on[a.IP]) == 0 {
			return view.NoInterface
		}
		if len(d.usable(a.IP)) == 0 {
			return view.Isolated
		}
	}
	for _, a := range d.addrs {
		if why, unable := d.view.Unable[a.IP]; unable {
			return why
		}
	}
	return noReason
}

// choose lists the candidates. With terminating set they include nodes whose endpoints terminate, and this node if it
// does not reach every network. It reports whether these are needed.
func (d *election) choose(terminating bool) bool {
	d.candidates, d.releaseReason = nil, noReason
	lacking := false
	for _, n := range d.vip.Nodes {
		why := d.against(n, terminating)
		if n == d.self {
			if why == noReason && d.partial && !terminating {
				why = view.PartlyIsolated
			}
			d.releaseReason = why
		}
		if why == noReason && (n != d.self || d.blocker == noReason) {
			d.candidates = append(d.candidates, n)
		}
		lacking = lacking || why == view.NoLocalEndpoint || why == view.PartlyIsolated
	}
	switch {
	case d.view.Leaving:
		d.releaseReason = view.Stopping
	case !slices.Contains(d.vip.Nodes, d.self):
		d.releaseReason = view.NotListed
	}
	return lacking && len(d.candidates) == 0
}

// against returns why a listed node is no candidate, noReason if it is one.
func (d *election) against(node string, terminating bool) view.Reason {
	switch why := d.unavailable(node); {
	case why != noReason:
		return why
	case !d.hasEndpoints(node, terminating):
		return view.NoLocalEndpoint
	case node != d.self && d.declined[node]:
		return view.NodeDeclined
	}
	return noReason
}

// hasSome reports whether this node has an endpoint of a needed port: it serves that until another node took over.
func (d *election) hasSome() bool {
	return slices.ContainsFunc(d.needed, func(p view.PortNodes) bool { return view.HaveEach([]view.PortNodes{p}, d.self, true) })
}

// unavailable returns why a listed node may not own the VirtualIP whatever its endpoints, noReason if it may.
func (d *election) unavailable(node string) view.Reason {
	if node != d.self {
		m := d.view.Members.Peers[node]
		switch {
		case !d.reachable(node) || m.Away:
			return view.NodeNotAlive
		case m.Leaving:
			return view.Stopping
		}
	} else if d.view.Leaving {
		return view.Stopping
	}
	return d.able(node)
}

// claimants returns the other nodes with a claim of these VirtualIPs. Otherwise each decision would read every node.
func claimants(ids map[view.VIPID]struct{}, m *view.Members) map[view.VIPID][]string {
	x := map[view.VIPID][]string{}
	for name, p := range m.Peers {
		if len(ids) < len(p.Claims) {
			for id := range ids {
				if _, claimed := p.Claims[id]; claimed {
					x[id] = append(x[id], name)
				}
			}
			continue
		}
		for id := range p.Claims {
			if _, wanted := ids[id]; wanted {
				x[id] = append(x[id], name)
			}
		}
	}
	return x
}

// recordMembers records the claims of other nodes, as far as these are reachable where it counts.
func (d *election) recordMembers(id view.VIPID, claimants []string) {
	peers := d.view.Members.Peers
	d.claimants = claimants
	for _, name := range d.claimants {
		m := peers[name]
		if !d.receives(m) {
			if m.Claims[id].State == view.Held && d.oneWay(m) {
				d.asymmetric = name
			}
			continue
		}
		c, asymmetric := m.Claims[id], d.asymmetricTo(m)
		switch {
		case c.State == view.Declined || asymmetric && !d.view.Nodes[name].Ready: // unreachable for Kubernetes, too
			d.declined[name] = true
		default:
			d.otherOwners = append(d.otherOwners, otherOwner{node: name, claim: c, asymmetric: asymmetric, returned: m.Returned})
		}
	}
	slices.SortFunc(d.otherOwners, otherOwner.compare)
	for _, m := range peers {
		if d.receives(m) {
			d.alone = false
			break
		}
	}
}

// unsure reports whether a claim of the reported owner, or of a node of the list, may be unknown.
func (d *election) unsure() bool {
	return d.unsynced(d.vip.ReportedOwner) || slices.ContainsFunc(d.vip.Nodes, d.unsynced)
}

// unsynced reports whether another node is reachable, no observer, and not all of its claims are known.
func (d *election) unsynced(node string) bool {
	m := d.view.Members.Peers[node]
	return !m.Observer && !m.Synced && d.receives(m)
}

// observes reports whether another node is reachable and an observer.
func (d *election) observes(node string) bool {
	m := d.view.Members.Peers[node]
	return m.Observer && d.receives(m)
}

// reachable reports whether another node is reachable.
func (d *election) reachable(node string) bool { return d.receives(d.view.Members.Peers[node]) }

// receives reports whether a member counts as alive: on one of this node's interfaces for the VirtualIP, or on any path
// if it has none of them to receive on.
func (d *election) receives(m view.Member) bool {
	if !m.Alive {
		return false
	}
	for name := range d.segments {
		if _, is := m.On[name]; is {
			return true
		}
	}
	return len(d.segments) == 0
}

// oneWay reports whether a member that receives no node counts as dead for that reason.
func (d *election) oneWay(m view.Member) bool {
	for name := range d.segments {
		if _, asymmetric := m.Asymmetric[name]; asymmetric {
			return m.Alive
		}
	}
	return false
}

// asymmetricTo reports whether an alive member does not receive this node on any interface that counts: an asymmetric
// link.
func (d *election) asymmetricTo(m view.Member) bool {
	for name := range d.segments {
		_, on := m.On[name]
		if _, asymmetric := m.Asymmetric[name]; on && !asymmetric {
			return false
		}
	}
	return len(m.Asymmetric) > 0
}

// yieldsTo reports whether this node finally yields to another owner that does not receive it, and so will not yield
// itself. That owner must be eligible, and its Node Ready. If that owner has no newer list and other members receive
// this node, the fault is on the other side: the status informs that owner through the API server (rule 7 of
// docs/design/failover.md).
func (d *election) yieldsTo(h otherOwner) bool {
	if d.able(h.node) != noReason || !d.hasEndpoints(h.node, true) || !d.view.Nodes[h.node].Ready {
		return false
	}
	if h.claim.Generation > d.vip.Generation || !d.view.Members.Received() {
		return true
	}
	d.asymmetric = h.node
	return false
}

// informed reports whether this node, which receives no other member, reads in the status that another node owns the
// VirtualIP and reports an asymmetric link (rule 7 of docs/design/failover.md).
func (d *election) informed() bool {
	return d.vip.Contested && d.alone && d.ownsUnreachable(d.vip.ReportedOwner)
}

// receivesOthers reports whether this node has received other members for long enough to receive all that are present.
func (d *election) receivesOthers() bool {
	return !d.alone && d.view.Members.Informed() && d.passed(d.informedAt.Add(contest*d.interval))
}

// ownsUnreachable reports whether the owner named in the status may still be alive although it is unreachable.
func (d *election) ownsUnreachable(node string) bool {
	return node != "" && node == d.vip.ReportedOwner && node != d.self && !d.reachable(node) && d.view.Nodes[node].Ready
}

// recordRivals counts how often other owners appeared and stopped. An owner that asked this node to take over does not
// count: this node has announced itself since.
func (d *election) recordRivals() {
	t := &d.ownership
	rivals := t.held && t.successor == "" && slices.ContainsFunc(d.otherOwners, func(h otherOwner) bool { return h.claim.State == view.Held })
	if t.held && t.rivals && !rivals {
		t.epoch++
	}
	t.rivals = rivals
}
