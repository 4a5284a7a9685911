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

// Planner decides the owner of each VirtualIP incrementally: the cost of a plan is proportional to the change. It is
// used by one goroutine.
type Planner struct {
	node     string
	interval time.Duration
	plane    view.DataPlane
	owners   Owners
	changed  ChangedOwners // of the plan in progress
	// claimants are those of the VirtualIPs of the plan in progress.
	claimants map[view.VIPID][]string

	vips  map[string]decided
	wakes map[string]time.Time
	// last are the sets of the last decision: most VirtualIPs share them.
	last struct{ nodes, interfaces map[string]struct{} }
	own  ownState
	// informedAt is when own.informed last changed.
	informedAt time.Time
	links      map[string]view.Link // of the last plan
	relations
}

// New returns a Planner for a node without a plan. The interval is that of the heartbeats, 0 for DefaultInterval.
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
	announce   []announced
	// nodes are those that affect the decision, interfaces those of this node for its addresses. The sets are immutable.
	nodes      map[string]struct{}
	interfaces map[string]struct{}
}

// announced is the announcement of an address.
type announced struct {
	addr netip.Addr
	Announcement
}

// of returns the announcement of an address.
func (d decided) of(addr netip.Addr) (Announcement, bool) {
	for _, a := range d.announce {
		if a.addr == addr {
			return a.Announcement, true
		}
	}
	return Announcement{}, false
}

// ownState is the state of this node that affects every VirtualIP.
type ownState struct {
	observer, stopping bool
	returned           int
	informed, listened bool
	isolated, segments map[string]struct{}
}

// Plan decides again about each VirtualIP whose decision may differ, after the data plane is planned. The Owners belong
// to the Planner, and the next call changes them.
func (p *Planner) Plan(v *view.View, touched view.Touched, now time.Time) (Owners, ChangedOwners) {
	p.changed = ChangedOwners{VIPs: map[string]struct{}{}, Announce: map[netip.Addr]struct{}{}}
	names := p.touchedVIPs(v, touched, now)
	ids := make(map[view.VIPID]struct{}, len(names))
	for name := range names {
		ids[p.idOf(name)] = struct{}{}
	}
	p.claimants = claimants(ids, &v.Members)
	for name := range names {
		p.decide(v, name, now)
	}
	p.claimants = nil
	return p.owners, p.changed
}

// idOf returns the name of a VirtualIP in messages.
func (p *Planner) idOf(name string) view.VIPID {
	if d, decided := p.vips[name]; decided && d.id != 0 {
		return d.id
	}
	return view.IDOf(name)
}

// decide elects the owner of a VirtualIP and, if that is this node, plans its announcement.
func (p *Planner) decide(v *view.View, name string, now time.Time) {
	before := p.vips[name]
	vip, exists := v.VIPs[name]
	p.changed.VIPs[name] = struct{}{}
	var after decided
	if exists {
		d := p.election(v, name, vip, now)
		d.run()
		after = p.outcome(d, name)
		p.vips[name], p.owners.VIPs[name] = after, d.decision()
		incremental.Set(p.wakes, name, d.wake, !d.wake.IsZero())
		claim, claimed := d.claim()
		incremental.Set(p.owners.Claims, name, claim, claimed)
	} else {
		delete(p.vips, name)
		delete(p.wakes, name)
		delete(p.owners.VIPs, name)
		delete(p.owners.Claims, name)
	}
	p.reindex(name, before, after)
	for _, a := range before.announce {
		p.planAnnouncement(a.addr)
	}
	for _, a := range after.announce {
		p.planAnnouncement(a.addr)
	}
}

// outcome returns the consequences of a decision for this node.
func (p *Planner) outcome(d *election, name string) decided {
	out := decided{
		vip: d.vip, id: p.idOf(name), ownership: d.ownership,
		asymmetric: slices.ContainsFunc(d.otherOwners, func(h otherOwner) bool { return h.asymmetric }),
		nodes:      d.dependsOn(), interfaces: map[string]struct{}{},
	}
	for _, a := range d.addrs {
		for _, on := range d.on[a.IP] {
			out.interfaces[on] = struct{}{}
		}
		if d.ownership.held {
			out.announce = append(out.announce, announced{a.IP, Announcement{
				VIP: name, Interfaces: d.usable(a.IP), Probe: d.ownership.probe, Epoch: d.ownership.epoch + d.view.Members.Returned,
			}})
		}
	}
	out.nodes, out.interfaces = shared(&p.last.nodes, out.nodes), shared(&p.last.interfaces, out.interfaces)
	return out
}

// shared returns the last set if the set is equal, and makes it the last one otherwise. A decided set is not nil.
func shared(last *map[string]struct{}, set map[string]struct{}) map[string]struct{} {
	if *last == nil || !maps.Equal(*last, set) {
		*last = set
	}
	return *last
}

// planAnnouncement updates the announcement of an address in the desired state. Of several VirtualIPs the first by name
// has precedence.
func (p *Planner) planAnnouncement(addr netip.Addr) {
	first, found := Announcement{}, false
	for name := range p.byAddr[addr] {
		if ann, ok := p.vips[name].of(addr); ok && (!found || name < first.VIP) {
			first, found = ann, true
		}
	}
	if before, was := p.owners.Announce[addr]; was != found || !before.Equal(first) {
		p.changed.Announce[addr] = struct{}{}
	}
	incremental.Set(p.owners.Announce, addr, first, found)
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
