// Package plan computes the desired state of a node from a View.
//
// A Desired has three parts, each of its own package: speaker/forwarding plans the data plane, then speaker/ownership
// decides who owns each VirtualIP, and speaker/routes plans the BGP sessions and routes. The last two read the planned
// data plane, and not each other. Changed names what may differ from the plan before.
//
// The Planner is incremental: the cost follows the change. Its result equals that of Make, which plans from nothing.
// The tests of this package plan complete clusters.
//
// It is pure: no I/O, no clock, no Kubernetes type. The same View, options and time give the same Desired, regardless
// of the order in which the View was filled.
package plan

import (
	"maps"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Options are the operator's settings for the node.
type Options struct {
	// Node is the name of this node.
	Node string
	// BGP is set if this node runs BGP.
	BGP bool
	// Interval is the heartbeat interval of the speakers, which sets the timing of conflict resolution; 0 means 200 ms.
	Interval time.Duration
	forwarding.Options
}

// Desired is the full desired state of a node.
type Desired struct {
	forwarding.Forwarding
	ownership.Owners
	routes.Routing
}

func newDesired() *Desired {
	return &Desired{Forwarding: forwarding.NewForwarding(), Owners: ownership.NewOwners(), Routing: routes.NewRouting()}
}

// Changed names the parts of Desired that may differ from the last call of Plan; everything else is unchanged.
type Changed struct {
	forwarding.ChangedForwarding
	ownership.ChangedOwners
	routes.ChangedRouting
	// Addrs are those of Local, Announce and Routed.
	Addrs map[netip.Addr]struct{}
}

// Make computes a plan for a node without earlier state.
func Make(v *view.View, o Options, now time.Time) *Desired {
	d, _ := NewPlanner(o).Plan(v, view.Touched{All: true}, now)
	return d
}

// MissingReturn returns why a node has no return route of a pool that has any, empty if it has all.
func MissingReturn(v *view.View) string { return forwarding.MissingReturn(v) }

// Planner plans for a node incrementally: the cost of a plan is proportional to the change. Its result equals that of
// Make. It is used by one goroutine.
type Planner struct {
	options    Options
	desired    *Desired
	forwarding *forwarding.Planner
	owners     *ownership.Planner
	routes     *routes.Planner
}

// NewPlanner returns a Planner without a plan; its first Plan needs touched.All.
func NewPlanner(o Options) *Planner {
	f := forwarding.New(o.Node, o.BGP, o.Options)
	return &Planner{
		options: o, desired: newDesired(),
		forwarding: f, owners: ownership.New(o.Node, o.Interval, f), routes: routes.New(o.Node, f),
	}
}

// Restart returns a Planner without a plan that keeps only what may influence one.
func (p *Planner) Restart() *Planner {
	f := p.forwarding.Restart()
	return &Planner{
		options: p.options, desired: newDesired(),
		forwarding: f, owners: p.owners.Restart(f), routes: p.routes.Restart(f),
	}
}

// Plan returns the desired state of the node, and what may differ from the last call. touched must name everything in
// the View that changed since then; what is due is planned anyway. The Desired belongs to the Planner, and the next
// call changes it.
func (p *Planner) Plan(v *view.View, touched view.Touched, now time.Time) (*Desired, *Changed) {
	d, changed := p.desired, &Changed{Addrs: map[netip.Addr]struct{}{}}
	d.Forwarding, changed.ChangedForwarding = p.forwarding.Plan(v, touched, now)
	d.Owners, changed.ChangedOwners = p.owners.Plan(v, touched, now)
	if p.options.BGP {
		d.Routing, changed.ChangedRouting = p.routes.Plan(v, touched, now)
	}
	p.forwarding.EndPlan()
	for _, addrs := range []map[netip.Addr]struct{}{changed.Local, changed.Announce, changed.Routed} {
		maps.Copy(changed.Addrs, addrs)
	}
	return d, changed
}

// Wake returns when to plan again without a change, zero for never.
func (p *Planner) Wake() time.Time {
	return incremental.Earlier(incremental.Earlier(p.forwarding.Wake(), p.owners.Wake()), p.routes.Wake())
}
