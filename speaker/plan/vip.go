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

// addVIP decides who answers for a VirtualIP and, if it is this node, adds the announcements.
func (p *Planner) addVIP(d *Desired, v *View, name string, vip VIP) {
	u := p.unit(d, v, vip)
	dec := Decision{Reason: NoService}
	for _, a := range u.addrs {
		dec.Addresses = append(dec.Addresses, a.IP)
	}
	if len(u.addrs) > 0 {
		dec.Owner, dec.Reason = u.owner(vip.Nodes)
	}
	dec.Reporter = p.node == cmp.Or(dec.Owner, firstReady(v, vip.Nodes), vip.Holder)
	if dec.Owner == p.node {
		for _, a := range u.addrs {
			d.Announce[a.IP] = u.announcement(name, a, v.Nodes[p.node].Labels)
		}
	} else if dec.Owner != "" {
		dec.Reason = NotOwner
	}
	d.VIPs[name] = dec
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
func (p *Planner) unit(d *Desired, v *View, vip VIP) unit {
	u := unit{view: v}
	wanted := map[netip.Addr]string{}
	for _, key := range vip.Services {
		svc, ok := v.Services[key]
		if !ok {
			continue
		}
		held := false
		for _, a := range svc.Addresses {
			if _, served := d.Local[a.IP]; served && slices.Contains(vip.Addresses, a.IP) {
				wanted[a.IP], held = a.Pool, true
			}
		}
		if !held {
			continue
		}
		part := p.services[key]
		switch {
		case !svc.Local:
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
		out.InSubnet = out.InSubnet || len(ad.Interfaces) == 0
		for _, name := range ad.Interfaces {
			names[name] = struct{}{}
		}
	}
	out.Interfaces = slices.Sorted(maps.Keys(names))
	return out
}
