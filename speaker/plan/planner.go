package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Make computes a plan for a node without earlier state.
func Make(v *view.View, o Options, now time.Time) *Desired {
	d, _ := NewPlanner(o).Plan(v, view.Touched{All: true}, now)
	return d
}

// Planner plans for a node incrementally: the cost of a plan is proportional to the change. Its result equals that of
// Make. It is used by one goroutine.
type Planner struct {
	options Options
	desired *Desired
	changed *Changed // of the plan in progress

	services map[pools.ServiceKey]servicePlan
	// wakes are the due times of Services; watchers are the Services that depend on other Nodes.
	wakes    map[pools.ServiceKey]time.Time
	watchers map[pools.ServiceKey]struct{}
	// checkers are the Services by the probe that they need.
	checkers incremental.Index[view.Check, pools.ServiceKey]
	// usersOf are the Services by each other Node that has an endpoint of them or that they forward through.
	usersOf incremental.Index[string, pools.ServiceKey]

	claims    map[ipvs.Key][]claim
	installed map[ipvs.Key]claim
	shared    map[ipvs.Element]int // how many additional times an element is needed
	locals    map[netip.Addr]int
	global    []ipvs.Element // of no Service
	pods      podsKnown

	admission admission

	owners *ownership.Planner
	routes *routes.Planner
}

// NewPlanner returns a Planner without a plan; its first Plan needs touched.All.
func NewPlanner(o Options) *Planner {
	p := &Planner{
		options:   o,
		desired:   newDesired(),
		services:  map[pools.ServiceKey]servicePlan{},
		wakes:     map[pools.ServiceKey]time.Time{},
		watchers:  map[pools.ServiceKey]struct{}{},
		checkers:  incremental.Index[view.Check, pools.ServiceKey]{},
		usersOf:   incremental.Index[string, pools.ServiceKey]{},
		claims:    map[ipvs.Key][]claim{},
		installed: map[ipvs.Key]claim{},
		shared:    map[ipvs.Element]int{},
		locals:    map[netip.Addr]int{},
		admission: newAdmission(o),
	}
	p.owners, p.routes = ownership.New(o.Node, o.Interval, p), routes.New(o.Node, p)
	return p
}

// Plan returns the desired state of the node, and what may differ from the last call. touched must name everything in
// the View that changed since then; a Service that is due is planned anyway. The Desired belongs to the Planner, and
// the next call changes it.
func (p *Planner) Plan(v *view.View, touched view.Touched, now time.Time) (*Desired, *Changed) {
	p.changed = newChanged()
	if (len(touched.Nodes) > 0 || touched.ServiceNetworks || touched.All) && p.planGlobal(v) {
		touched.All = true
	}
	services := p.touchedServices(v, touched, now)
	p.touchedAdmissions(v, touched, services)
	for key := range services {
		p.replan(v, key, now)
	}
	p.admission.all, p.desired.Gateways = nil, p.admission.gateways
	p.decideReasons(v)
	p.desired.Owners, p.changed.ChangedOwners = p.owners.Plan(v, touched, now)
	maps.Copy(p.changed.Addrs, p.changed.Announce)
	if p.options.BGP {
		p.desired.Routing, p.changed.ChangedRouting = p.routes.Plan(v, touched, now)
		maps.Copy(p.changed.Addrs, p.changed.Routed)
	}
	changed := p.changed
	p.changed = nil // the caller owns it now; the first one names everything
	return p.desired, changed
}

// Wake returns when to plan again without a change, zero for never.
func (p *Planner) Wake() time.Time {
	var first time.Time
	for _, at := range p.wakes {
		first = incremental.Earlier(first, at)
	}
	return incremental.Earlier(incremental.Earlier(first, p.owners.Wake()), p.routes.Wake())
}

// touchedServices returns the Services whose plan may differ.
func (p *Planner) touchedServices(v *view.View, touched view.Touched, now time.Time) map[pools.ServiceKey]struct{} {
	out := map[pools.ServiceKey]struct{}{}
	if _, own := touched.Nodes[p.options.Node]; own || touched.Host || touched.All {
		for key := range p.services {
			out[key] = struct{}{}
		}
		for key := range v.Services {
			out[key] = struct{}{}
		}
		return out
	}
	for key := range touched.Services {
		out[key] = struct{}{}
	}
	if len(touched.Nodes) > 0 {
		for key := range p.watchers {
			out[key] = struct{}{}
		}
	}
	p.touchedUnreachable(touched, out)
	for check := range touched.Checks {
		for key := range p.checkers[check] {
			out[key] = struct{}{}
		}
	}
	for key, at := range p.wakes {
		if !at.After(now) {
			out[key] = struct{}{}
		}
	}
	return out
}

// replan plans one Service again and updates the desired state.
func (p *Planner) replan(v *view.View, key pools.ServiceKey, now time.Time) {
	before := p.services[key]
	svc, exists := v.Services[key]
	var after servicePlan
	if exists {
		after = p.planService(v, key, now)
		p.services[key] = after
	} else {
		delete(p.services, key)
	}
	p.changed.Services[key] = struct{}{}
	for k := range before.virtuals {
		if _, still := after.virtuals[k]; !still {
			p.disclaim(k, key)
		}
	}
	for k, virtual := range after.virtuals {
		p.claim(k, claim{service: key, created: svc.Created, virtual: virtual})
	}
	incremental.Set(p.desired.Refused, key, after.refused, len(after.refused) > 0)
	p.admission.record(key, svc.Addresses)
	incremental.Set(p.wakes, key, after.wake, !after.wake.IsZero())
	incremental.Set(p.watchers, key, struct{}{}, after.nodes)
	p.count(after.elements, before.elements)
	p.planChecks(key, before.checks, after.checks)
	p.indexNodes(key, before, after)
	if after.health != nil {
		p.desired.HealthPorts[key] = *after.health
	} else {
		delete(p.desired.HealthPorts, key)
	}
}

func (p *Planner) planChecks(key pools.ServiceKey, before, after []view.Check) {
	for _, c := range before {
		p.checkers.Remove(c, key)
	}
	for _, c := range after {
		p.checkers.Add(c, key)
	}
	for _, c := range append(slices.Clone(before), after...) {
		p.changed.Checks[c] = struct{}{}
		incremental.Set(p.desired.Checks, c, struct{}{}, len(p.checkers[c]) > 0)
	}
}

// planGlobal updates the filter elements that belong to no Service, and reports whether that affects every Service.
func (p *Planner) planGlobal(v *view.View) bool {
	before, pods := p.global, p.pods
	p.global = globalElements(v, p.options)
	p.count(p.global, before)
	p.pods = podFamilies(p.global)
	return p.pods != pods
}

// decideReasons records the outcome of each changed Service, including those that won or lost a virtual server.
func (p *Planner) decideReasons(v *view.View) {
	for key := range p.changed.Services {
		if _, exists := v.Services[key]; !exists {
			delete(p.desired.Services, key)
			continue
		}
		p.desired.Services[key] = p.reason(key)
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
		if takesConnections(virtual.Server) {
			reason = view.Programmed
		}
	}
	return reason
}

// Service implements DataPlane.
func (p *Planner) Service(key pools.ServiceKey) view.Served { return p.services[key].Served }

// IsLocal implements DataPlane.
func (p *Planner) IsLocal(addr netip.Addr) bool { _, is := p.desired.Local[addr]; return is }

// Changed implements DataPlane.
func (p *Planner) Changed() (services map[pools.ServiceKey]struct{}, addrs map[netip.Addr]struct{}) {
	return p.changed.Services, p.changed.Addrs
}
