package ownership

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// Plan decides again about each VirtualIP whose decision may differ, after the data plane is planned. The Owners belong
// to the Planner, and the next call changes them.
func (p *Planner) Plan(v *view.View, touched view.Touched, now time.Time) (Owners, ChangedOwners) {
	p.changed = ChangedOwners{VIPs: map[string]struct{}{}, Announce: map[netip.Addr]struct{}{}}
	for name := range p.touchedVIPs(v, touched, now) {
		p.decide(v, name, now)
	}
	return p.owners, p.changed
}

// decide elects the owner of a VirtualIP and, if that is this node, announces it.
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
	for addr := range before.announce {
		p.announce(addr)
	}
	for addr := range after.announce {
		p.announce(addr)
	}
}

// outcome returns the consequences of a decision for this node.
func (p *Planner) outcome(d *election, name string) decided {
	out := decided{vip: d.vip, id: view.IDOf(name), ownership: d.ownership, asymmetric: slices.ContainsFunc(d.otherOwners, func(h otherOwner) bool { return h.asymmetric }), announce: map[netip.Addr]Announcement{},
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
	if before, was := p.owners.Announce[addr]; was != found || !before.Equal(first) {
		p.changed.Announce[addr] = struct{}{}
	}
	incremental.Set(p.owners.Announce, addr, first, found)
}
