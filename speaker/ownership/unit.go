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
	// local are its Services with policy Local that have an endpoint on any node.
	local []view.Served
	// localKeys are their keys.
	localKeys []pools.ServiceKey
	// direct is set if a Service with policy Local is forwarded directly: a node that cannot use tunnels, and so has no
	// endpoint of it, may not answer.
	direct bool
	// open is set if a node without endpoints may answer, too: a Service has policy Cluster.
	open bool
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
		held, part := false, p.plane.Service(key)
		for _, a := range part.Addresses {
			if (p.plane.IsLocal(a.IP) || a.AnnounceOnly) && slices.Contains(vip.Addresses, a.IP) {
				wanted[a.IP], held = max(wanted[a.IP], a.Pool), true // whichever comes first
			}
		}
		if !held {
			continue
		}
		services = append(services, svc.Labels)
		switch {
		case !part.NeedsLocalEndpoint:
			u.open, u.direct = true, u.direct || part.DirectLocal
		case len(part.Ready)+len(part.Usable) > 0:
			u.local, u.localKeys = append(u.local, part), append(u.localKeys, key)
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

// able returns noReason if the API objects permit a node to answer, else the reason. The node must not be excluded,
// every address must be advertised there, and it needs an endpoint of every Service with policy Local that has any.
// With terminating set, terminating endpoints count, too.
func (u unit) able(node string, terminating bool) view.Reason {
	n := u.view.Nodes[node]
	if n.Excluded || n.BeingDeleted || n.NetworkUnavailable {
		return view.Excluded
	}
	if !u.advertisedAt(n.Labels) {
		return view.NoAdvertisement
	}
	if !u.hasEndpoints(node, terminating) {
		return view.NoLocalEndpoint
	}
	return noReason
}

// whereLocal returns the nodes with endpoints of its Services with policy Local.
func (u unit) whereLocal() []LocalService {
	var out []LocalService
	for i, part := range u.local {
		nodes := slices.AppendSeq(slices.Collect(maps.Keys(part.Ready)), maps.Keys(part.Usable))
		slices.Sort(nodes)
		out = append(out, LocalService{Service: u.localKeys[i], Nodes: slices.Compact(nodes)})
	}
	slices.SortFunc(out, func(a, b LocalService) int { return a.Service.Compare(b.Service) })
	return out
}

func (u unit) hasEndpoints(node string, terminating bool) bool {
	if !u.open && len(u.local) == 0 {
		return false
	}
	if u.direct && node != u.self && !u.view.Members.Directs(node, slices.ContainsFunc(u.addrs, func(a view.Address) bool { return a.IP.Is6() })) {
		return false
	}
	for _, part := range u.local {
		_, ready := part.Ready[node]
		_, usable := part.Usable[node]
		if !ready && !(terminating && usable) {
			return false
		}
	}
	return true
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
// interfaces, or on those whose subnet contains it.
func (u unit) interfaces(a view.Address, labels map[string]string) []string {
	names := map[string]struct{}{}
	for _, ad := range u.ads {
		if !ad.Matches(a.Pool, u.view.Pools[a.Pool].Labels, labels) {
			continue
		}
		for _, name := range ad.Interfaces {
			if _, up := u.view.Links[name]; up {
				names[name] = struct{}{}
			}
		}
		if len(ad.Interfaces) > 0 {
			continue
		}
		for name, link := range u.view.Links {
			if slices.ContainsFunc(link.Subnets, func(p netip.Prefix) bool { return p.Contains(a.IP) }) {
				names[name] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
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
