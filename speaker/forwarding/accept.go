package forwarding

import (
	"net/netip"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// accept returns the accepted addresses of a Service, and why the others are refused. An external or foreign address of
// another node is served by that node and not recorded as refused.
func (p *Planner) accept(v *view.View, svc view.Service) (accepted []view.Address, refused map[netip.Addr]pools.Refusal) {
	node := v.Nodes[p.node]
	for _, a := range svc.Addresses {
		var why pools.Refusal
		var bad bool
		switch guard := p.admission.guard; a.Kind {
		case view.ClusterIP:
			why, bad = guard.ClusterIP(a.IP)
		case view.LoadBalancer:
			if pool := p.admission.pools.PoolOf(a.IP); pool != "" {
				a.Pool = pool
			}
			why, bad = guard.Assigned(a.IP, a.Pool)
		case view.External:
			why, bad = guard.External(a.IP, p.admission.pools.PoolOf(a.IP), isHost(v, a.IP, node))
		case view.Foreign:
			why, bad = guard.Foreign(a.IP, isHost(v, a.IP, node))
		}
		if !bad && bearsEndpoints(a.Kind) && !isHost(v, a.IP, node) {
			if of := p.admission.endpointOf(v, a.IP); of != (pools.ServiceKey{}) {
				why, bad = pools.Refusal{Rule: pools.RuleEndpoint, Of: of.String()}, true
			}
		}
		switch {
		case !bad:
			accepted = append(accepted, a)
		case why.Rule != pools.RuleNode || !bearsEndpoints(a.Kind):
			if refused == nil {
				refused = map[netip.Addr]pools.Refusal{}
			}
			refused[a.IP] = why
		}
	}
	return accepted, refused
}

// bearsEndpoints reports whether an address of the kind is refused if it is an endpoint. Addresses of pools and
// ClusterIPs are not: a user who can write EndpointSlices could withdraw them.
func bearsEndpoints(k view.AddressKind) bool { return k == view.External || k == view.Foreign }

// endpointOf returns the first Service by name that has an address as an endpoint, the zero key for none. It scans all
// endpoints at most once per plan.
func (m *admission) endpointOf(v *view.View, addr netip.Addr) pools.ServiceKey {
	if first, known := m.endpoints[addr]; known {
		return first
	}
	if m.all == nil {
		m.all = map[netip.Addr]pools.ServiceKey{}
		for key, slices := range v.Slices {
			for _, slice := range slices {
				for _, e := range slice.Endpoints {
					if first, there := m.all[e.Addr]; !there || key.Compare(first) < 0 {
						m.all[e.Addr] = key
					}
				}
			}
		}
	}
	m.endpoints[addr] = m.all[addr]
	return m.all[addr]
}

// record records the present addresses of a Service, none for a deleted one.
func (m *admission) record(key pools.ServiceKey, addresses []view.Address) {
	for _, addr := range m.externalOf[key] {
		m.external.Remove(addr, key)
	}
	var external []netip.Addr
	for _, a := range addresses {
		if bearsEndpoints(a.Kind) {
			external = append(external, a.IP)
			m.external.Add(a.IP, key)
		}
	}
	for _, addr := range m.externalOf[key] {
		if _, still := m.external[addr]; !still {
			delete(m.endpoints, addr)
		}
	}
	incremental.Set(m.externalOf, key, external, len(external) > 0)
}
