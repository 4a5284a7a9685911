package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// Desired is everything that a node must hold. It is whole: what is not in it must not be there.
type Desired struct {
	Table    ipvs.Table
	Firewall ipvs.Firewall
	// Local are the addresses that the node takes in as its own.
	Local map[netip.Addr]struct{}
	// Announce are the addresses that this node answers for, once they are programmed.
	Announce map[netip.Addr]Announcement
	// VIPs and Services say why.
	VIPs     map[string]Decision
	Services map[pools.ServiceKey]Reason
}

// Announcement says where an address is answered for.
type Announcement struct {
	// VIP is the name of the VirtualIP.
	VIP string
	// Interfaces by name, sorted.
	Interfaces []string
	// InSubnet adds the interfaces whose subnet holds the address.
	InSubnet bool
}

// Equal tells whether two announcements are the same.
func (a Announcement) Equal(b Announcement) bool {
	return a.VIP == b.VIP && a.InSubnet == b.InSubnet && slices.Equal(a.Interfaces, b.Interfaces)
}

// Decision is what was decided about a VirtualIP, seen from one node.
type Decision struct {
	// Owner is the node that answers, empty if none may.
	Owner  string
	Reason Reason
	// Reporter is set on the one node that writes the VirtualIP's status: the owner, or while there is none the first
	// listed node that is alive, or while there is none either the node that the status names, to take its claim back.
	Reporter bool
	// Addresses that are announced together.
	Addresses []netip.Addr
}

// Make plans for a node from nothing.
func Make(v *View, node string) *Desired {
	return NewPlanner(node).Plan(v, Touched{All: true})
}

// Planner plans for a node again and again and keeps what it worked out for Services that did not change. Its answer is
// that of Make. It is used by one goroutine.
type Planner struct {
	node     string
	services map[pools.ServiceKey]servicePlan
}

// NewPlanner returns a Planner for a node. Its first call of Plan looks at everything if told so.
func NewPlanner(node string) *Planner {
	return &Planner{node: node, services: map[pools.ServiceKey]servicePlan{}}
}

// Plan returns what the node must hold. touched must name everything in the View that changed since the last call.
func (p *Planner) Plan(v *View, touched Touched) *Desired {
	if touched.All {
		clear(p.services)
		for key := range v.Services {
			p.touch(v, key)
		}
	}
	for key := range touched.Services {
		p.touch(v, key)
	}
	d := &Desired{
		Table:    ipvs.Table{},
		Firewall: ipvs.Firewall{Addrs: map[netip.Addr]struct{}{}, Served: map[ipvs.Key]struct{}{}, Masquerade: map[ipvs.Key]struct{}{}},
		Local:    map[netip.Addr]struct{}{},
		Announce: map[netip.Addr]Announcement{},
		VIPs:     map[string]Decision{},
		Services: map[pools.ServiceKey]Reason{},
	}
	for _, key := range oldestFirst(v.Services) {
		d.addService(key, v.Services[key], p.services[key])
	}
	for name, vip := range v.VIPs {
		p.addVIP(d, v, name, vip)
	}
	return d
}

func (p *Planner) touch(v *View, key pools.ServiceKey) {
	svc, ok := v.Services[key]
	if !ok {
		delete(p.services, key)
		return
	}
	p.services[key] = planService(svc, v.Slices[key], p.node)
}

// oldestFirst orders Services by age, then name, so that the same one wins where two claim one address and port.
func oldestFirst(services map[pools.ServiceKey]Service) []pools.ServiceKey {
	keys := make([]pools.ServiceKey, 0, len(services))
	for key := range services {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b pools.ServiceKey) int {
		return cmp.Or(cmp.Compare(services[a].Created, services[b].Created),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return keys
}

// Without returns the same without some addresses. It shares the rest.
func (d *Desired) Without(addrs map[netip.Addr]struct{}) *Desired {
	hit := false
	for addr := range addrs {
		_, local := d.Local[addr]
		hit = hit || local
	}
	if !hit {
		return d
	}
	without := func(addr netip.Addr) bool { _, drop := addrs[addr]; return drop }
	c := *d
	c.Table, c.Firewall = maps.Clone(d.Table), d.Firewall.Clone()
	c.Local, c.Announce = maps.Clone(d.Local), maps.Clone(d.Announce)
	maps.DeleteFunc(c.Table, func(k ipvs.Key, _ ipvs.VirtualServer) bool { return without(k.Addr) })
	maps.DeleteFunc(c.Firewall.Addrs, func(a netip.Addr, _ struct{}) bool { return without(a) })
	maps.DeleteFunc(c.Firewall.Served, func(k ipvs.Key, _ struct{}) bool { return without(k.Addr) })
	maps.DeleteFunc(c.Firewall.Masquerade, func(k ipvs.Key, _ struct{}) bool { return without(k.Addr) })
	maps.DeleteFunc(c.Local, func(a netip.Addr, _ struct{}) bool { return without(a) })
	maps.DeleteFunc(c.Announce, func(a netip.Addr, _ Announcement) bool { return without(a) })
	return &c
}

// addService merges one Service's plan into the whole.
func (d *Desired) addService(key pools.ServiceKey, svc Service, part servicePlan) {
	reason := NoEndpoint
	if len(part.servers) == 0 {
		reason = Unsupported
	}
	conflict := false
	for k, vs := range part.servers {
		if _, taken := d.Table[k]; taken {
			conflict = true
			continue
		}
		d.Table[k] = vs
		d.Firewall.Addrs[k.Addr] = struct{}{}
		d.Firewall.Served[k] = struct{}{}
		if !svc.Local {
			d.Firewall.Masquerade[k] = struct{}{}
		}
		d.Local[k.Addr] = struct{}{}
		if len(vs.RealServers) > 0 {
			reason = Programmed
		}
	}
	if conflict {
		reason = PortConflict
	}
	d.Services[key] = reason
}

// Status is what the reporter of a VirtualIP says about it.
type Status struct {
	// Node answers for the addresses, on Interfaces; empty if nobody does.
	Node       string
	Interfaces []string
	Announced  bool
	Reason     Reason
	Message    string
}
