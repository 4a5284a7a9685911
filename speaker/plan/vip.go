package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// decided is a VirtualIP at its last decision, with the announcements of this node.
type decided struct {
	vip        VIP
	id         VIPID
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

// touchedVIPs returns the VirtualIPs whose decision may differ, after the Services are planned.
func (p *Planner) touchedVIPs(v *View, touched Touched, now time.Time) map[string]struct{} {
	out := maps.Clone(touched.VIPs)
	if out == nil {
		out = map[string]struct{}{}
	}
	informed, listened, returned := p.state.informed, p.state.listened, p.state.returned
	own := p.touchesOwn(v) // first: it records the present state
	if p.state.informed != informed {
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
	if again := p.state.returned != returned; again || p.state.informed != informed {
		for name, d := range p.vips {
			if d.ownership.barred != "" || d.ownership.held && (again || d.vip.ReportedOwner != p.options.Node) {
				out[name] = struct{}{}
			}
		}
	}
	if p.state.listened != listened {
		for name, d := range p.vips {
			if d.asymmetric {
				out[name] = struct{}{}
			}
		}
	}
	for key := range p.changed.Services {
		maps.Copy(out, p.bySvc[key])
	}
	for _, addrs := range []map[netip.Addr]struct{}{p.changed.Addrs, touched.Unable} {
		for addr := range addrs {
			maps.Copy(out, p.byAddr[addr])
		}
	}
	for name, at := range p.vipWakes {
		if !at.After(now) {
			out[name] = struct{}{}
		}
	}
	return out
}

// touchesOwn reports whether state of this node changed that affects every VirtualIP.
func (p *Planner) touchesOwn(v *View) bool {
	s := ownState{returned: v.Members.Returned, observer: v.Members.Observer, stopping: v.Leaving, informed: v.Members.informed(), listened: v.Members.received(), isolated: v.Members.Isolated, segments: v.Members.Segments}
	before := p.state
	p.state = s
	return s.observer != before.observer || s.stopping != before.stopping || !maps.Equal(s.isolated, before.isolated) ||
		!maps.Equal(s.segments, before.segments) || (s.segments == nil) != (before.segments == nil)
}

// touchesLinks reports whether an interface changed on which an address may be announced. Pod interfaces change all the
// time.
func (p *Planner) touchesLinks(v *View, touched Touched) bool {
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

// decide elects the owner of a VirtualIP and, if that is this node, announces it.
func (p *Planner) decide(v *View, name string, now time.Time) {
	before := p.vips[name]
	vip, exists := v.VIPs[name]
	p.changed.VIPs[name] = struct{}{}
	var after decided
	if exists {
		d := p.election(v, name, vip, now)
		d.run()
		after = p.outcome(d, name)
		p.vips[name], p.desired.VIPs[name] = after, d.decision()
		set(p.vipWakes, name, d.wake, !d.wake.IsZero())
		claim, claimed := d.claim()
		set(p.desired.Claims, name, claim, claimed)
	} else {
		delete(p.vips, name)
		delete(p.vipWakes, name)
		delete(p.desired.VIPs, name)
		delete(p.desired.Claims, name)
	}
	p.reindex(name, before, after)
	for addr := range before.announce {
		p.announce(addr)
	}
	for addr := range after.announce {
		p.announce(addr)
	}
}

// outcome returns the consequences of a decision for this node.
func (p *Planner) outcome(d *election, name string) decided {
	out := decided{vip: d.vip, id: IDOf(name), ownership: d.ownership, asymmetric: slices.ContainsFunc(d.otherOwners, func(h otherOwner) bool { return h.asymmetric }), announce: map[netip.Addr]Announcement{},
		nodes: d.dependsOn(), interfaces: map[string]struct{}{}}
	for _, a := range d.addrs {
		for _, on := range d.on[a.IP] {
			out.interfaces[on] = struct{}{}
		}
		if d.ownership.held {
			out.announce[a.IP] = Announcement{VIP: name, Interfaces: d.usable(a.IP), Probe: d.ownership.probe, Epoch: d.ownership.epoch + d.view.Members.Returned}
		}
	}
	return out
}

// announce updates the announcement of an address in the desired state. Of several VirtualIPs the first by name has
// precedence.
func (p *Planner) announce(addr netip.Addr) {
	first, found := Announcement{}, false
	for name := range p.byAddr[addr] {
		if ann, ok := p.vips[name].announce[addr]; ok && (!found || name < first.VIP) {
			first, found = ann, true
		}
	}
	if before, was := p.desired.Announce[addr]; was != found || !before.Equal(first) {
		p.changed.Addrs[addr] = struct{}{}
	}
	set(p.desired.Announce, addr, first, found)
}

// reindex records the Nodes, Services, addresses and interfaces that a VirtualIP depends on now.
func (p *Planner) reindex(name string, before, after decided) {
	if before.nodes != nil {
		p.byID.remove(before.id, name)
	}
	for node := range before.nodes {
		if _, still := after.nodes[node]; !still {
			p.byNode.remove(node, name)
		}
	}
	for _, key := range before.vip.Services {
		p.bySvc.remove(key, name)
	}
	for _, addr := range before.vip.Addresses {
		p.byAddr.remove(addr, name)
	}
	if after.nodes != nil {
		p.byID.add(after.id, name)
	}
	for node := range after.nodes {
		if _, was := before.nodes[node]; !was {
			p.byNode.add(node, name)
		}
	}
	for _, key := range after.vip.Services {
		p.bySvc.add(key, name)
	}
	for _, addr := range after.vip.Addresses {
		p.byAddr.add(addr, name)
	}
	p.countSegments(before.interfaces, after.interfaces)
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
			_, was := p.desired.Segments[name]
			n := p.segments[name]
			set(p.desired.Segments, name, struct{}{}, n > 0)
			set(p.segments, name, n, n > 0)
			p.changed.Segments = p.changed.Segments || was != (n > 0)
		}
	}
}
