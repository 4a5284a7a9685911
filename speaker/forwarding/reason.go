package forwarding

import (
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// decideReasons records the outcome of each changed Service, including those that won or lost a virtual server.
func (p *Planner) decideReasons(v *view.View) {
	for key := range p.changed.Services {
		if _, exists := v.Services[key]; !exists {
			delete(p.forwarding.Services, key)
			continue
		}
		p.forwarding.Services[key] = p.reason(key)
	}
}

// reason returns the outcome of a Service.
func (p *Planner) reason(key pools.ServiceKey) view.Reason {
	part := p.services[key]
	if len(part.virtuals) == 0 {
		return part.unserved
	}
	reason := view.NoEndpoint
	for k, virtual := range part.virtuals {
		if p.installed[k].service != key {
			return view.PortConflict
		}
		if takesConnections(virtual.Server) || virtual.Direct != nil {
			reason = view.Programmed
		}
	}
	return reason
}
