package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// unit is a VirtualIP with what the View says about its addresses and Services.
type unit struct {
	view  *View
	addrs []Address
	// local are the plans of its Services of policy Local that have an endpoint somewhere.
	local []servicePlan
	// open is set if a node without endpoints may answer too: a Service has policy Cluster.
	open bool
}

// decided is a VirtualIP as it was when it was decided, and what this node announces of it.
type decided struct {
	vip      VIP
	announce map[netip.Addr]Announcement
}

// touchedVIPs returns the VirtualIPs whose decision may differ, once the Services are planned.
func (p *Planner) touchedVIPs(v *View, touched Touched) map[string]struct{} {
	out := maps.Clone(touched.VIPs)
	if out == nil {
		out = map[string]struct{}{}
	}
	if touched.All || touched.Advertisements {
		for name := range v.VIPs {
			out[name] = struct{}{}
		}
		for name := range p.vips {
			out[name] = struct{}{}
		}
		return out
	}
	for node := range touched.Nodes {
		maps.Copy(out, p.byNode[node])
	}
	for key := range p.changed.Services {
		maps.Copy(out, p.bySvc[key])
	}
	for addr := range p.changed.Addrs {
		maps.Copy(out, p.byAddr[addr])
	}
	return out
}

// decide decides who answers for a VirtualIP and, if it is this node, announces it.
func (p *Planner) decide(v *View, name string) {
	before := p.vips[name]
	vip, exists := v.VIPs[name]
	p.reindex(name, before.vip, vip)
	p.changed.VIPs[name] = struct{}{}
	var after decided
	if exists {
		var dec Decision
		dec, after = p.decision(v, name, vip)
		p.vips[name], p.desired.VIPs[name] = after, dec
	} else {
		delete(p.vips, name)
		delete(p.desired.VIPs, name)
	}
	for addr := range before.announce {
		p.announce(addr)
	}
	for addr := range after.announce {
		p.announce(addr)
	}
}

// decision says who answers for a VirtualIP.
func (p *Planner) decision(v *View, name string, vip VIP) (Decision, decided) {
	u := p.unit(v, vip)
	dec := Decision{Reason: NoService}
	for _, a := range u.addrs {
		dec.Addresses = append(dec.Addresses, a.IP)
	}
	if len(u.addrs) > 0 {
		dec.Owner, dec.Reason = u.owner(vip.Nodes)
	}
	dec.Reporter = p.options.Node == cmp.Or(dec.Owner, firstReady(v, vip.Nodes), vip.Holder)
	out := decided{vip: vip, announce: map[netip.Addr]Announcement{}}
	if dec.Owner == p.options.Node {
		for _, a := range u.addrs {
			out.announce[a.IP] = u.announcement(name, a, v.Nodes[p.options.Node].Labels)
		}
	} else if dec.Owner != "" {
		dec.Reason = NotOwner
	}
	return dec, out
}

// announce puts the announcement of an address into the whole. Of several VirtualIPs the first by name has it.
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

// reindex notes which Nodes, Services and addresses a VirtualIP names now.
func (p *Planner) reindex(name string, before, after VIP) {
	for _, node := range before.Nodes {
		p.byNode.remove(node, name)
	}
	for _, key := range before.Services {
		p.bySvc.remove(key, name)
	}
	for _, addr := range before.Addresses {
		p.byAddr.remove(addr, name)
	}
	for _, node := range after.Nodes {
		p.byNode.add(node, name)
	}
	for _, key := range after.Services {
		p.bySvc.add(key, name)
	}
	for _, addr := range after.Addresses {
		p.byAddr.add(addr, name)
	}
}

// firstReady returns the first node that is Ready, whether it may answer or not.
func firstReady(v *View, nodes []string) string {
	i := slices.IndexFunc(nodes, v.Ready)
	if i < 0 {
		return ""
	}
	return nodes[i]
}

// unit collects those addresses of a VirtualIP that one of its Services really has on this data plane.
func (p *Planner) unit(v *View, vip VIP) unit {
	u := unit{view: v}
	wanted := map[netip.Addr]string{}
	for _, key := range vip.Services {
		svc, ok := v.Services[key]
		if !ok {
			continue
		}
		held := false
		for _, a := range svc.Addresses {
			if _, served := p.desired.Local[a.IP]; (served || a.AnnounceOnly) && slices.Contains(vip.Addresses, a.IP) {
				wanted[a.IP], held = a.Pool, true
			}
		}
		if !held {
			continue
		}
		part := p.services[key]
		switch {
		case !svc.needsLocalEndpoint():
			u.open = true
		case len(part.ready)+len(part.usable) > 0:
			u.local = append(u.local, part)
		}
	}
	for _, ip := range slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare) {
		u.addrs = append(u.addrs, Address{IP: ip, Pool: wanted[ip]})
	}
	return u
}

// owner chooses among the nodes with ready endpoints first, then among those whose endpoints are about to go.
func (u unit) owner(nodes []string) (string, Reason) {
	owner, why := Choose(nodes, u.view.Ready, func(n string) Reason { return u.able(n, false) })
	if owner == "" && why == NoLocalEndpoint {
		owner, why = Choose(nodes, u.view.Ready, func(n string) Reason { return u.able(n, true) })
	}
	return owner, why
}

// able tells whether a node may answer: every address is advertised there, and it has an endpoint of every Service of
// policy Local that has any at all.
func (u unit) able(node string, leaving bool) Reason {
	labels := u.view.Nodes[node].Labels
	for _, a := range u.addrs {
		if !u.advertised(a.Pool, labels) {
			return NoAdvertisement
		}
	}
	if !u.open && len(u.local) == 0 {
		return NoLocalEndpoint
	}
	for _, part := range u.local {
		_, ready := part.ready[node]
		_, usable := part.usable[node]
		if !ready && !(leaving && usable) {
			return NoLocalEndpoint
		}
	}
	return Owner
}

func (u unit) advertised(pool string, labels map[string]string) bool {
	for _, ad := range u.view.Advertisements {
		if ad.matches(pool, labels) {
			return true
		}
	}
	return false
}

// announcement unites all advertisements of an address on a node.
func (u unit) announcement(vip string, a Address, labels map[string]string) Announcement {
	out := Announcement{VIP: vip}
	names := map[string]struct{}{}
	for _, ad := range u.view.Advertisements {
		if !ad.matches(a.Pool, labels) {
			continue
		}
		for _, name := range ad.Interfaces {
			if _, up := u.view.Links[name]; up {
				names[name] = struct{}{}
			}
		}
		if len(ad.Interfaces) > 0 {
			continue
		}
		for name, link := range u.view.Links {
			if slices.ContainsFunc(link.Subnets, func(p netip.Prefix) bool { return p.Contains(a.IP) }) {
				names[name] = struct{}{}
			}
		}
	}
	out.Interfaces = slices.Sorted(maps.Keys(names))
	return out
}
