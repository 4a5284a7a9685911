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
