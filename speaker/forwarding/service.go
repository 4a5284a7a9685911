package forwarding

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// planService plans one Service. The result depends on the View, the time, and the last plan for what drains.
func (p *Planner) planService(v *view.View, key pools.ServiceKey, now time.Time) servicePlan {
	w := &planning{
		view: v, name: p.node, withArriving: p.arriving, options: p.options, now: now,
		svc: v.Services[key], slices: offering(v.Slices[key], v.Services[key].Ports), node: v.Nodes[p.node], pods: p.pods,
		before: p.services[key].lists, since: p.services[key].since, asked: p.services[key].checks, checks: map[view.Check]struct{}{}, endpoints: map[netip.Addr]bool{},
		byPort: map[ListKey]map[netip.AddrPort]*view.Endpoint{},
		nodes:  &p.nodes, directed: p.services[key].directed, silent: p.services[key].silent, spreads: map[ListKey]map[uint16]int{},
		out: servicePlan{
			virtuals: map[ipvs.Key]*virtual{}, lists: map[ListKey]list{},
			since: map[ListKey]map[netip.AddrPort]time.Time{},
			uses:  map[string]struct{}{}, directed: map[ipvs.Key]directed{}, silent: map[string]silence{},
		},
	}
	if tooLarge(w.svc, w.slices) {
		w.out.unserved = view.TooLarge
		w.out.dropEmpty()
		return w.out
	}
	w.out.Addresses, w.out.refused = p.accept(v, w.svc)
	w.recordEndpoints()
	w.decideDirect()
	for _, port := range w.svc.Ports {
		if port.Protocol == ipvs.TCP || port.Protocol == ipvs.UDP || port.Protocol == ipvs.SCTP {
			w.port(port)
		}
	}
	w.acceptEndpoints()
	w.recordNodes()
	switch {
	case slices.ContainsFunc(w.out.Addresses, func(a view.Address) bool { return a.AnnounceOnly }):
		w.out.unserved = view.AnnouncedOnly
	case len(w.out.refused) > 0:
		w.out.unserved = view.AddressRefused
	default:
		w.out.unserved = view.NoAddress
	}
	if w.servesHealth() {
		w.healthPort(key)
	}
	w.out.elements = sorted(w.out.elements)
	w.out.checks = slices.SortedFunc(maps.Keys(w.checks), view.Check.Compare)
	w.out.dropEmpty()
	return w.out
}

// maxEndpoints is the maximum number of ports times endpoints of a Service. Each pair may be a real server.
const maxEndpoints = 65536

// tooLarge reports whether the plan of a Service would need more memory than one Service may have.
func tooLarge(svc view.Service, slices map[string]view.Slice) bool {
	endpoints := 0
	for _, slice := range slices {
		endpoints += len(slice.Endpoints)
	}
	return svc.TooLarge || len(svc.Ports)*endpoints > maxEndpoints
}

// dropEmpty frees what most Services do not need.
func (p *servicePlan) dropEmpty() {
	if len(p.directed) == 0 {
		p.directed = nil
	}
	if len(p.silent) == 0 {
		p.silent = nil
	}
	if len(p.uses) == 0 {
		p.uses = nil
	}
}

// servesHealth reports whether the Service has a healthCheckNodePort that this node serves.
func (w *planning) servesHealth() bool {
	return w.svc.NodePorts && w.svc.Local && w.svc.HealthCheckNodePort != 0
}

// healthPort serves the healthCheckNodePort on the NodePort addresses, and accepts its clients in the packet filter
// like those of a virtual server.
func (w *planning) healthPort(service pools.ServiceKey) {
	addrs := nodePortAddresses(w.view, w.node, w.options)
	w.out.health = &HealthPort{
		Port: w.svc.HealthCheckNodePort, Service: service, IPv4Endpoints: w.countHere(true), IPv6Endpoints: w.countHere(false),
		Addrs: NewAddrSet(addrs...),
	}
	for _, addr := range addrs {
		key := ipvs.Key{Addr: addr, Protocol: ipvs.TCP, Port: w.svc.HealthCheckNodePort}
		w.out.elements = append(w.out.elements, ipvs.Element{Set: ipvs.Served, Key: key})
	}
}

// acceptEndpoints adds the filter elements for the endpoint addresses and for those on this node, which
// may connect to themselves.
func (w *planning) acceptEndpoints() {
	used := map[netip.Addr]bool{}
	use := func(vs *ipvs.VirtualServer) {
		if vs == nil {
			return
		}
		for at := range vs.RealServers {
			if local, endpoint := w.endpoints[at.Addr()]; endpoint { // otherwise a node
				used[at.Addr()] = local
			}
		}
	}
	for _, v := range w.out.virtuals {
		use(&v.Server)
		use(v.ClusterInternal)
	}
	for addr, local := range used {
		key := ipvs.Key{Addr: addr}
		w.out.elements = append(w.out.elements, ipvs.Element{Set: ipvs.Endpoints, Key: key})
		if local {
			w.out.elements = append(w.out.elements, ipvs.Element{Set: ipvs.Hairpin, Key: key})
		}
	}
}
