package routes

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// Planner plans the sessions and routes of a node incrementally: the cost of a plan is proportional to the change.
// It is used by one goroutine.
type Planner struct {
	name    string // of the node
	plane   view.DataPlane
	routing Routing
	changed ChangedRouting // of the plan in progress

	peers        []string // with a session, sorted
	ads          []string // sorted
	decommission decommission
	// node is the last known state of this node. The deletion of a Node object ends no session and does not stop a
	// decommissioning; one that returns without an address keeps the old one.
	node view.Node
	// addresses are the pool addresses of each Service, byAddr the Services of each address.
	addresses map[pools.ServiceKey][]netip.Addr
	byAddr    incremental.Index[netip.Addr, pools.ServiceKey]
	addrs     map[netip.Addr]routedAddress
	// counts is the number of addresses behind a prefix, by the name of the advertisement.
	counts map[netip.Prefix]map[string]int
	// alone is the route of an advertisement that shares its prefix with no other; all such prefixes of a family have
	// the same.
	alone map[adFamily]Route
	// conflicts are those of each prefix, sorted.
	conflicts map[netip.Prefix][]LocalPrefs
}

// New returns a Planner for a node without a plan; its first Plan needs touched.All.
func New(node string, plane view.DataPlane) *Planner {
	return &Planner{
		name: node, plane: plane, routing: NewRouting(),
		addresses: map[pools.ServiceKey][]netip.Addr{}, byAddr: incremental.Index[netip.Addr, pools.ServiceKey]{},
		addrs: map[netip.Addr]routedAddress{}, counts: map[netip.Prefix]map[string]int{}, alone: map[adFamily]Route{},
		conflicts: map[netip.Prefix][]LocalPrefs{},
	}
}

// Restart returns a planner without a plan that keeps only what may influence one: the last known Node, the progress of
// its decommissioning, and which addresses are announced.
func (p *Planner) Restart(plane view.DataPlane) *Planner {
	fresh := New(p.name, plane)
	fresh.decommission, fresh.node = p.decommission, p.node
	for addr, a := range p.addrs {
		fresh.addrs[addr] = routedAddress{announced: a.announced}
	}
	return fresh
}

// Wake returns when to plan again without a change, zero for never.
func (p *Planner) Wake() time.Time { return p.decommission.until }

// routedAddress is an address with its prefix by each advertisement.
type routedAddress struct {
	announced bool
	by        []contribution // sorted by advertisement
}

type adFamily struct {
	ad string
	v4 bool
}

type contribution struct {
	ad     string
	prefix netip.Prefix
}
