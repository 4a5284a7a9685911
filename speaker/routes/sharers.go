package routes

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

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
