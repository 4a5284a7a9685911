// Package ownership decides which node owns each VirtualIP, from the point of view of one node.
//
// There is no leader. Each speaker evaluates the same rules (docs/design/failover.md): the list of the VirtualIP ranks
// the nodes, the API objects and the endpoints determine which of them are eligible, and the members publish claims. An
// owner keeps its address: it releases it at once for a blocker, and otherwise only once a successor has taken over. A
// node acquires an address that has no owner after all before it in rank had time to. Of two owners the later in rank
// yields.
//
// An election is the decision about one VirtualIP (election.go; its steps are release, hand over, acquire). Its state
// between two decisions is an ownership. The Planner decides again only about the VirtualIPs that a change affects,
// after the data plane is planned; its Owners are the decisions, the claims to publish and the addresses to announce.
//
// It is pure: no I/O, no clock, no Kubernetes type. Its tests are those of complete plans, in package plan: scenarios,
// properties, and clusters of planners.
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

// touchedVIPs returns the VirtualIPs whose decision may differ, after the Services are planned.
func (p *Planner) touchedVIPs(v *view.View, touched view.Touched, now time.Time) map[string]struct{} {
	out := maps.Clone(touched.VIPs)
	if out == nil {
		out = map[string]struct{}{}
	}
	informed, listened, returned := p.own.informed, p.own.listened, p.own.returned
	own := p.touchesOwn(v) // first: it records the present state
	if p.own.informed != informed {
		p.informedAt = now
	}
	if links := p.touchesLinks(v, touched); touched.All || touched.Advertisements || own || links {
		for name := range v.VIPs {
			out[name] = struct{}{}
		}
		for name := range p.vips {
			out[name] = struct{}{}
		}
		return out
	}
	for _, nodes := range []map[string]struct{}{touched.Nodes, touched.Members} {
		for node := range nodes {
			maps.Copy(out, p.byNode[node])
		}
	}
	for id := range touched.Claims {
		maps.Copy(out, p.byID[id])
	}
	// Both change when datagrams are lost, and affect few VirtualIPs: see reports, and Announcement.Epoch.
	if again := p.own.returned != returned; again || p.own.informed != informed {
		for name, d := range p.vips {
			if d.ownership.barred != "" || d.ownership.held && (again || d.vip.ReportedOwner != p.node) {
				out[name] = struct{}{}
			}
		}
	}
	if p.own.listened != listened {
		for name, d := range p.vips {
			if d.asymmetric {
				out[name] = struct{}{}
			}
		}
	}
	services, local := p.plane.Changed()
	for key := range services {
		maps.Copy(out, p.bySvc[key])
	}
	for _, addrs := range []map[netip.Addr]struct{}{local, touched.Unable} {
		for addr := range addrs {
			maps.Copy(out, p.byAddr[addr])
		}
	}
	for name, at := range p.wakes {
		if !at.After(now) {
			out[name] = struct{}{}
		}
	}
	return out
}

// touchesOwn reports whether state of this node changed that affects every VirtualIP.
func (p *Planner) touchesOwn(v *view.View) bool {
	s := ownState{returned: v.Members.Returned, observer: v.Members.Observer, stopping: v.Leaving, informed: v.Members.Informed(), listened: v.Members.Received(), isolated: v.Members.Isolated, segments: v.Members.Segments}
	before := p.own
	p.own = s
	return s.observer != before.observer || s.stopping != before.stopping || !maps.Equal(s.isolated, before.isolated) ||
		!maps.Equal(s.segments, before.segments) || (s.segments == nil) != (before.segments == nil)
}

// touchesLinks reports whether an interface changed on which an address may be announced. Pod interfaces change all the
// time.
func (p *Planner) touchesLinks(v *view.View, touched view.Touched) bool {
	bears := touched.All
	for name := range touched.Links {
		before, was := p.links[name]
		after, is := v.Links[name]
		if was == is && slices.Equal(before.Subnets, after.Subnets) {
			continue
		}
		bears = bears || len(before.Subnets)+len(after.Subnets) > 0
		for _, ad := range v.Advertisements {
			bears = bears || slices.Contains(ad.Interfaces, name)
		}
	}
	if bears {
		p.links = maps.Clone(v.Links)
	}
	return bears
}

// reindex records the Nodes, Services, addresses and interfaces that a VirtualIP depends on now.
func (p *Planner) reindex(name string, before, after decided) {
	if before.nodes != nil && after.nodes == nil {
		p.byID.Remove(before.id, name)
	}
	for node := range before.nodes {
		if _, still := after.nodes[node]; !still {
			p.byNode.Remove(node, name)
		}
	}
	if before.nodes == nil && after.nodes != nil {
		p.byID.Add(after.id, name)
	}
	for node := range after.nodes {
		if _, was := before.nodes[node]; !was {
			p.byNode.Add(node, name)
		}
	}
	change(p.bySvc, before.vip.Services, after.vip.Services, name)
	change(p.byAddr, before.vip.Addresses, after.vip.Addresses, name)
	p.countSegments(before.interfaces, after.interfaces)
}

// change replaces the keys of a VirtualIP in an index.
func change[K comparable](x incremental.Index[K, string], before, after []K, name string) {
	if slices.Equal(before, after) {
		return
	}
	for _, key := range before {
		x.Remove(key, name)
	}
	for _, key := range after {
		x.Add(key, name)
	}
}

// countSegments records the interfaces on which members must be received.
func (p *Planner) countSegments(before, after map[string]struct{}) {
	for name := range after {
		p.segments[name]++
	}
	for name := range before {
		p.segments[name]--
	}
	for _, names := range []map[string]struct{}{before, after} {
		for name := range names {
			_, was := p.owners.Segments[name]
			n := p.segments[name]
			incremental.Set(p.owners.Segments, name, struct{}{}, n > 0)
			incremental.Set(p.segments, name, n, n > 0)
			p.changed.Segments = p.changed.Segments || was != (n > 0)
		}
	}
}
