package ownership

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// Owners are the owners of the VirtualIPs, as one node decides and observes them, and what follows for this node.
type Owners struct {
	// VIPs are the decisions by the name of the VirtualIP.
	VIPs map[string]Decision
	// Announce are the L2 addresses to announce, once they are programmed.
	Announce map[netip.Addr]Announcement
	// Claims are the claims to publish to the other members, Segments the interfaces on which to receive these.
	Claims   map[string]view.Claim
	Segments map[string]struct{}
}

// NewOwners returns Owners of no VirtualIP.
func NewOwners() Owners {
	return Owners{VIPs: map[string]Decision{}, Announce: map[netip.Addr]Announcement{}, Claims: map[string]view.Claim{}, Segments: map[string]struct{}{}}
}

// ChangedOwners names the parts of Owners that may differ from the last plan.
type ChangedOwners struct {
	// VIPs of VIPs and Claims.
	VIPs map[string]struct{}
	// Announce are the addresses whose announcement changed.
	Announce map[netip.Addr]struct{}
	// Segments is set if they differ.
	Segments bool
}

// Planner decides the owner of each VirtualIP incrementally: the cost of a plan is proportional to the change. It is
// used by one goroutine.
type Planner struct {
	node     string
	interval time.Duration
	plane    view.DataPlane
	owners   Owners
	changed  ChangedOwners // of the plan in progress

	vips  map[string]decided
	wakes map[string]time.Time
	own   ownState
	// informedAt is when own.informed last changed.
	informedAt time.Time
	links      map[string]view.Link // of the last plan
	relations
}

// New returns a Planner for a node without a plan. The interval is that of the heartbeats, 0 for 200 ms.
func New(node string, interval time.Duration, plane view.DataPlane) *Planner {
	return &Planner{
		node: node, interval: cmp.Or(interval, DefaultInterval), plane: plane,
		owners: NewOwners(),
		vips:   map[string]decided{}, wakes: map[string]time.Time{}, links: map[string]view.Link{},
		relations: relations{
			segments: map[string]int{}, byNode: incremental.Index[string, string]{}, byID: incremental.Index[view.VIPID, string]{},
			bySvc: incremental.Index[pools.ServiceKey, string]{}, byAddr: incremental.Index[netip.Addr, string]{},
		},
	}
}

// relations are the VirtualIPs by what their decision depends on.
type relations struct {
	segments map[string]int                              // interface to the number of VirtualIPs that use it
	byNode   incremental.Index[string, string]           // Node to VirtualIPs
	byID     incremental.Index[view.VIPID, string]       // name in messages to VirtualIPs
	bySvc    incremental.Index[pools.ServiceKey, string] // Service to VirtualIPs
	byAddr   incremental.Index[netip.Addr, string]       // address to VirtualIPs
}

// decided is a VirtualIP at its last decision, with the announcements of this node.
type decided struct {
	vip        view.VIP
	id         view.VIPID
	ownership  ownership
	asymmetric bool // another owner does not receive this node
	announce   map[netip.Addr]Announcement
	// nodes are those that affect the decision, interfaces those of this node for its addresses.
	nodes      map[string]struct{}
	interfaces map[string]struct{}
}

// ownState is the state of this node that affects every VirtualIP.
type ownState struct {
	observer, stopping bool
	returned           int
	informed, listened bool
	isolated, segments map[string]struct{}
}

// Wake returns when to plan again without a change, zero for never.
func (p *Planner) Wake() time.Time {
	var first time.Time
	for _, at := range p.wakes {
		first = incremental.Earlier(first, at)
	}
	return first
}

// WakeOf returns when to decide again about a VirtualIP, zero for never.
func (p *Planner) WakeOf(name string) time.Time { return p.wakes[name] }

// Restart returns a Planner without a plan that keeps the history, on which decisions depend besides the View.
func (p *Planner) Restart(plane view.DataPlane) *Planner {
	fresh := New(p.node, p.interval, plane)
	fresh.own, fresh.informedAt = p.own, p.informedAt
	for name, d := range p.vips {
		fresh.vips[name] = decided{ownership: d.ownership}
	}
	return fresh
}

// History returns the history as text, for tests.
func (p *Planner) History() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p.vips)) {
		fmt.Fprintf(&b, "%s %+v %v\n", name, p.vips[name].ownership, p.wakes[name])
	}
	return b.String()
}
