package routes

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// sharers are the Services on one address.
type sharers struct {
	labels []map[string]string
	pools  []string
	// here is set if this node may take traffic of the address: each Service with policy Local that has an endpoint has
	// one here, and not only a new one that should wait. anywhere is set if one of the Services has an endpoint.
	here, anywhere bool
}

// sharers collects the Services that really have the address on this data plane. A terminating endpoint counts for
// policy Local while the Service has no ready one. Unless the address is announced already,
// new endpoints do not count while another node could take its traffic.
func (p *Planner) sharers(v *view.View, addr netip.Addr, announced bool) sharers {
	var out sharers
	served := p.plane.IsLocal(addr)
	open, local, lacks := false, false, false
	var ends []map[string]struct{} // of the Services with policy Local that have endpoints
	var arriving []map[view.NodeFamily]struct{}
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
		nodes := part.Ready
		if len(nodes) == 0 {
			nodes = part.Usable
		}
		out.anywhere = out.anywhere || len(nodes) > 0
		_, here := nodes[p.name]
		switch {
		case !part.NeedsLocalEndpoint:
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
	if !isNew(p.name) {
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
