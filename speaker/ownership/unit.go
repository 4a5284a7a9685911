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
