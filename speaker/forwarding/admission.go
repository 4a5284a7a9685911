package forwarding

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// touchedAdmissions updates the addresses and networks of the cluster itself. It adds the Services whose accepted
// addresses, or the pools of these, changed.
func (p *Planner) touchedAdmissions(v *view.View, t view.Touched, services map[pools.ServiceKey]struct{}) {
	m := &p.admission
	m.touchedEndpoints(v, t, services)
	if !m.learn(v, t, p.node, p.options) {
		return
	}
	for key, before := range p.services {
		if _, already := services[key]; already {
			continue
		}
		if addresses, refused := p.accept(v, v.Services[key]); !slices.Equal(addresses, before.Addresses) || !maps.Equal(refused, before.refused) {
			services[key] = struct{}{}
		}
	}
}

// touchedEndpoints drops outdated endpoint checks and adds the Services with such an address.
func (m *admission) touchedEndpoints(v *view.View, t view.Touched, services map[pools.ServiceKey]struct{}) {
	if t.All {
		clear(m.endpoints)
		return
	}
	if len(m.endpoints) == 0 {
		return
	}
	drop := func(addr netip.Addr) {
		delete(m.endpoints, addr)
		maps.Copy(services, m.external[addr])
	}
	for key := range t.Slices {
		for addr, of := range m.endpoints {
			if of == key && !hasEndpoint(v.Slices[key], addr) {
				drop(addr)
			}
		}
		for _, slice := range v.Slices[key] {
			for _, e := range slice.Endpoints {
				if of, cached := m.endpoints[e.Addr]; cached && (of == pools.ServiceKey{} || key.Compare(of) < 0) {
					drop(e.Addr)
				}
			}
		}
	}
}

// hasEndpoint reports whether an address is an endpoint in one of the slices.
func hasEndpoint(all map[string]view.Slice, addr netip.Addr) bool {
	for _, slice := range all {
		if slices.ContainsFunc(slice.Endpoints, func(e view.Endpoint) bool { return e.Addr == addr }) {
			return true
		}
	}
	return false
}
