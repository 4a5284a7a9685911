// Package forwarding plans the data plane of one node: from Services and EndpointSlices to virtual servers, elements of
// the packet filter and local addresses.
//
// Each Service is planned on its own: its accepted addresses (admission.go) and ports become virtual servers
// (service.go). The endpoints of a port become a list of real servers (endpoints.go), which virtual servers share:
// unreachable nodes are excluded first, then conditions, topology hints and checks of new endpoints apply; endpoints
// that are not chosen any more keep their connections. Of several Services that claim one virtual server the oldest
// wins. With forwarding "direct" the virtual server has a first tier (direct.go); with "nodeport" its real servers are
// nodes (vianodes.go).
//
// The Planner plans again only the Services that a change affects, and names what differs. Ownership and routes depend
// on it by view.DataPlane.
//
// It is pure: no I/O, no clock, no Kubernetes type.
package forwarding

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// Forwarding is the desired state of the data plane of a node: what it does not contain must not exist.
type Forwarding struct {
	Table ipvs.Table
	// ClusterInternal are virtual servers for clients on this node, Pods and processes, instead of the entry of Table.
	ClusterInternal ipvs.Table
	// Direct is the first tier of the virtual servers that have one. SlotsDigest is the sum of the digests of their slots:
	// two nodes with equal slots have the same, whatever the indexes of the nodes.
	Direct      ipvs.Direct
	SlotsDigest uint64
	// ServicePorts are the Service ports of the virtual servers of Table.
	ServicePorts map[ipvs.Key]ServicePort
	// Keys are the keys of Table by address.
	Keys   map[netip.Addr]map[ipvs.Key]struct{}
	Filter ipvs.Filter
	// Local are the addresses that are local to the node.
	Local map[netip.Addr]struct{}
	// HealthPorts are the healthCheckNodePorts to serve.
	HealthPorts map[pools.ServiceKey]HealthPort
	// Checks are the probes of other nodes and of new endpoints.
	Checks map[view.Check]struct{}
	// Services gives the reasons.
	Services map[pools.ServiceKey]view.Reason
	// Refused are the addresses that no Service may have, of the Services that have any.
	Refused map[pools.ServiceKey]map[netip.Addr]pools.Refusal
	// Fallbacks are the Services that are to be forwarded directly and are not.
	Fallbacks map[pools.ServiceKey]view.Fallback
	// Gateways are those of this node outside the addresses and Pod networks of Nodes, sorted. The slice is immutable.
	Gateways []netip.Addr
	// ReturnRoutes are the routes of answers, PoolReturns those of each pool, sorted. The slices are immutable.
	ReturnRoutes []ipvs.ReturnRoute
	PoolReturns  []view.PoolReturn
	// Unreachable counts the endpoints on unreachable nodes, by node, for nodes that have any.
	Unreachable map[string]view.UnreachableEndpoints
}

// NewForwarding returns a Forwarding of nothing.
func NewForwarding() Forwarding {
	return Forwarding{
		Table:           ipvs.Table{},
		ClusterInternal: ipvs.Table{},
		Direct:          ipvs.Direct{Virtuals: map[ipvs.Key]ipvs.Directed{}},
		ServicePorts:    map[ipvs.Key]ServicePort{},
		Keys:            map[netip.Addr]map[ipvs.Key]struct{}{},
		Filter:          ipvs.Filter{},
		Local:           map[netip.Addr]struct{}{},
		HealthPorts:     map[pools.ServiceKey]HealthPort{},
		Checks:          map[view.Check]struct{}{},
		Services:        map[pools.ServiceKey]view.Reason{},
		Refused:         map[pools.ServiceKey]map[netip.Addr]pools.Refusal{},
		Fallbacks:       map[pools.ServiceKey]view.Fallback{},
		Unreachable:     map[string]view.UnreachableEndpoints{},
	}
}

// ChangedForwarding names the parts of Forwarding that may differ from the last plan.
type ChangedForwarding struct {
	// Keys of Table, ClusterInternal, Direct and ServicePorts.
	Keys     map[ipvs.Key]struct{}
	Elements map[ipvs.Element]struct{}
	// DirectNodes is set if the addresses of Direct changed.
	DirectNodes bool
	// ReturnRoutes is set if they or PoolReturns changed.
	ReturnRoutes bool
	// Local are the addresses of Local.
	Local map[netip.Addr]struct{}
	// Services of Services, Refused, Fallbacks and HealthPorts.
	Services map[pools.ServiceKey]struct{}
	Checks   map[view.Check]struct{}
	// Unreachable are the nodes of Unreachable.
	Unreachable map[string]struct{}
}

func newChangedForwarding() ChangedForwarding {
	return ChangedForwarding{
		Keys:        map[ipvs.Key]struct{}{},
		Elements:    map[ipvs.Element]struct{}{},
		Local:       map[netip.Addr]struct{}{},
		Services:    map[pools.ServiceKey]struct{}{},
		Checks:      map[view.Check]struct{}{},
		Unreachable: map[string]struct{}{},
	}
}

// ServicePort is a port of a Service. The port of its virtual server is another one if that is a NodePort.
type ServicePort struct {
	Service pools.ServiceKey
	Port    uint16
}

// HealthPort is a healthCheckNodePort to serve.
type HealthPort struct {
	Port    uint16
	Service pools.ServiceKey
	// IPv4Endpoints and IPv6Endpoints are the numbers of ready endpoints on this node, 0 for a family in which another
	// node serves a port that this one does not.
	IPv4Endpoints, IPv6Endpoints int
	// Addrs are the node addresses to serve it on: those of NodePorts.
	Addrs AddrSet
}

// Options are the operator's settings for the forwarding.
type Options struct {
	// ServiceProxy is set if IronLB serves every Service here, not only those that kube-proxy leaves to it.
	ServiceProxy bool
	// Scheduler and its Flags for Services without their own; round robin if empty.
	Scheduler string
	Flags     ipvs.Flags
	// NodePortCIDRs enables NodePorts on the node's addresses within these ranges; on the Node's InternalIPs if empty.
	NodePortCIDRs []netip.Prefix
	// DetectLocal is how Pod packets are recognized.
	DetectLocal DetectLocal
	// ExternalIPs are the CIDRs of external IPs to serve; none if empty.
	ExternalIPs []netip.Prefix
	// APIServers are the API server addresses that this process uses.
	APIServers []netip.Addr
	// DrainLimit is the maximum time for which a terminating endpoint keeps its connections, 0 for as long as it is
	// listed.
	DrainLimit time.Duration
	// ResetAfter is how long after its node became unreachable an excluded TCP endpoint keeps its connections; 0 sets
	// no limit besides DrainLimit.
	ResetAfter time.Duration
	// EndpointChecks enables checks of new TCP endpoints before they take connections from others.
	EndpointChecks bool
}

// resetAt returns when to end connections to a node that is unreachable since then, zero for never.
func (o Options) resetAt(since time.Time) time.Time {
	if o.ResetAfter == 0 {
		return time.Time{}
	}
	return since.Add(o.ResetAfter)
}

// Planner plans the forwarding of a node incrementally: the cost of a plan is proportional to the change. It is
// used by one goroutine.
type Planner struct {
	node       string // its name
	arriving   bool   // whether Served.Arriving is needed
	options    Options
	forwarding Forwarding
	changed    ChangedForwarding // of the plan in progress

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

	// nodes are the nodes of tunnels, directs the Services to be forwarded directly, tunnels the members that can
	// receive through tunnels: true for IPv4 only. observer is that of the last plan.
	nodes    nodeTable
	directs  map[pools.ServiceKey]struct{}
	tunnels  map[string]bool
	observer bool
}

// New returns a Planner for a node without a plan; its first Plan needs touched.All. arriving requests
// Served.Arriving, on which routes depend.
func New(node string, arriving bool, o Options) *Planner {
	return &Planner{
		node: node, arriving: arriving, options: o, forwarding: NewForwarding(),
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
		nodes:     nodeTable{index: map[string]uint16{}},
		directs:   map[pools.ServiceKey]struct{}{},
		tunnels:   map[string]bool{},
	}
}

// Restart returns a planner without a plan that keeps only what may influence one: the chosen endpoints, which decide
// what drains, and the slots with the indexes of the nodes.
func (p *Planner) Restart() *Planner {
	fresh := New(p.node, p.arriving, p.options)
	for key, part := range p.services {
		fresh.services[key] = servicePlan{lists: part.lists, since: part.since, checks: part.checks, directed: part.directed, silent: part.silent}
	}
	fresh.nodes = nodeTable{index: maps.Clone(p.nodes.index), names: slices.Clone(p.nodes.names), addrs: p.nodes.addrs}
	return fresh
}

// Wake returns when to plan again without a change, zero for never.
func (p *Planner) Wake() time.Time {
	var first time.Time
	for _, at := range p.wakes {
		first = incremental.Earlier(first, at)
	}
	return first
}

// Service implements view.DataPlane.
func (p *Planner) Service(key pools.ServiceKey) view.Served { return p.services[key].Served }

// IsLocal implements view.DataPlane.
func (p *Planner) IsLocal(addr netip.Addr) bool {
	_, is := p.forwarding.Local[addr]
	return is
}

// Changed implements view.DataPlane.
func (p *Planner) Changed() (services map[pools.ServiceKey]struct{}, addrs map[netip.Addr]struct{}) {
	return p.changed.Services, p.changed.Local
}

// Lists returns the lists of real servers that the virtual servers of a Service share.
func (p *Planner) Lists(service pools.ServiceKey) map[ListKey]map[netip.AddrPort]ipvs.RealServer {
	out := map[ListKey]map[netip.AddrPort]ipvs.RealServer{}
	for key, l := range p.services[service].lists {
		if !key.Slots {
			out[key] = l.servers
		}
	}
	return out
}

// admission determines which addresses of Services may become local or be announced on this node.
type admission struct {
	guard *pools.Guard
	pools pools.Index
	// gateways are the gateways of this node that are no addresses of Nodes or in their Pod networks, sorted.
	gateways []netip.Addr
	// external are the Services by address, for addresses that must not be endpoints; externalOf is the reverse.
	external   incremental.Index[netip.Addr, pools.ServiceKey]
	externalOf map[pools.ServiceKey][]netip.Addr
	// endpoints are the addresses of external that were checked, with the first Service that has the address as an
	// endpoint, the zero key for none.
	endpoints map[netip.Addr]pools.ServiceKey
	// all are all endpoints, only while a plan needs them.
	all map[netip.Addr]pools.ServiceKey
}

func newAdmission(o Options) admission {
	return admission{
		guard:    pools.NewGuard(o.ExternalIPs),
		external: incremental.Index[netip.Addr, pools.ServiceKey]{}, externalOf: map[pools.ServiceKey][]netip.Addr{}, endpoints: map[netip.Addr]pools.ServiceKey{},
	}
}

// podsKnown records for each family whether there are Pod sources.
type podsKnown struct{ four, six bool }

func (k podsKnown) of(addr netip.Addr) bool { return addr.Is4() && k.four || addr.Is6() && k.six }

// Plan returns the desired forwarding, and what may differ from the last call. touched must name everything in the View
// that changed since then; a Service that is due is planned anyway. The Forwarding belongs to the planner, and the next
// call changes it.
func (p *Planner) Plan(v *view.View, touched view.Touched, now time.Time) (Forwarding, ChangedForwarding) {
	p.changed = newChangedForwarding()
	if (len(touched.Nodes) > 0 || touched.ServiceNetworks || touched.All) && p.planGlobal(v) {
		touched.All = true
	}
	if len(touched.Nodes) > 0 || touched.All {
		p.planNodes(v)
	}
	p.planReturns(v, touched)
	services := p.touchedServices(v, touched, now)
	p.touchedAdmissions(v, touched, services)
	for key := range services {
		p.replan(v, key, now)
	}
	p.admission.all, p.forwarding.Gateways = nil, p.admission.gateways
	p.decideReasons(v)
	return p.forwarding, p.changed
}

// EndPlan ends the use of Changed until the next plan: after the first one it names everything.
func (p *Planner) EndPlan() { p.changed = ChangedForwarding{} }

// touchedServices returns the Services whose plan may differ.
func (p *Planner) touchedServices(v *view.View, touched view.Touched, now time.Time) map[pools.ServiceKey]struct{} {
	out := map[pools.ServiceKey]struct{}{}
	p.touchedDirect(v, touched, out)
	if _, own := touched.Nodes[p.node]; own || touched.Host || touched.All {
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
		after.virtuals[k] = p.claim(k, claim{service: key, created: svc.Created, virtual: virtual})
	}
	incremental.Set(p.forwarding.Refused, key, after.refused, len(after.refused) > 0)
	incremental.Set(p.forwarding.Fallbacks, key, after.fallback, after.fallback != view.Fallback{})
	incremental.Set(p.directs, key, struct{}{}, svc.Forwarding == view.Direct)
	p.admission.record(key, svc.Addresses)
	incremental.Set(p.wakes, key, after.wake, !after.wake.IsZero())
	incremental.Set(p.watchers, key, struct{}{}, after.nodes)
	p.count(after.elements, before.elements)
	p.planChecks(key, before.checks, after.checks)
	p.indexNodes(key, before, after)
	if after.health != nil {
		p.forwarding.HealthPorts[key] = *after.health
	} else {
		delete(p.forwarding.HealthPorts, key)
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
		incremental.Set(p.forwarding.Checks, c, struct{}{}, len(p.checkers[c]) > 0)
	}
}

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
