package ownership

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

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
