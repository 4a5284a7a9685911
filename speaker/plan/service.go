package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// planning is the plan of one Service in progress.
type planning struct {
	view    *view.View
	options Options
	now     time.Time
	svc     view.Service
	slices  map[string]view.Slice
	node    view.Node // this one
	pods    podsKnown
	// before are the lists of the last plan of the Service, since the times at which its endpoints became ready.
	before map[listKey]list
	since  map[listKey]map[netip.AddrPort]time.Time
	asked  []view.Check // by the last plan, sorted
	checks map[view.Check]struct{}
	// byPort are the candidates of each port; the keys have local unset.
	byPort map[listKey]map[netip.AddrPort]*view.Endpoint
	// endpoints are the addresses in the slices, true for those on this node.
	endpoints map[netip.Addr]bool
	out       servicePlan
}

// planService plans one Service. The result depends on the View, the time, and the last plan for what drains.
func (p *Planner) planService(v *view.View, key pools.ServiceKey, now time.Time) servicePlan {
	w := &planning{
		view: v, options: p.options, now: now,
		svc: v.Services[key], slices: v.Slices[key], node: v.Nodes[p.options.Node], pods: p.pods,
		before: p.services[key].lists, since: p.services[key].since, asked: p.services[key].checks, checks: map[view.Check]struct{}{}, endpoints: map[netip.Addr]bool{},
		byPort: map[listKey]map[netip.AddrPort]*view.Endpoint{},
		out: servicePlan{
			virtuals: map[ipvs.Key]virtual{}, lists: map[listKey]list{},
			since:  map[listKey]map[netip.AddrPort]time.Time{},
			Served: view.Served{Ready: map[string]struct{}{}, Usable: map[string]struct{}{}},
			uses:   map[string]struct{}{},
		},
	}
	w.out.Addresses, w.out.refused = p.accept(v, w.svc)
	w.recordEndpoints()
	for _, port := range w.svc.Ports {
		if port.Protocol == ipvs.TCP || port.Protocol == ipvs.UDP || port.Protocol == ipvs.SCTP {
			w.port(port)
		}
	}
	w.acceptEndpoints()
	w.out.Arriving = w.arriving()
	switch {
	case slices.ContainsFunc(w.out.Addresses, func(a view.Address) bool { return a.AnnounceOnly }):
		w.out.unserved = view.AnnouncedOnly
	case len(w.out.refused) > 0:
		w.out.unserved = view.AddressRefused
	default:
		w.out.unserved = view.NoAddress
	}
	if w.svc.NodePorts && w.svc.Local && w.svc.HealthCheckNodePort != 0 {
		w.healthPort(key)
	}
	w.out.elements = sorted(w.out.elements)
	w.out.checks = slices.SortedFunc(maps.Keys(w.checks), view.Check.Compare)
	return w.out
}

// healthPort serves the healthCheckNodePort on the NodePort addresses, and accepts its clients in the packet filter
// like those of a virtual server (ipvs.md 2.3.4, 5.1.2).
func (w *planning) healthPort(service pools.ServiceKey) {
	addrs := nodePortAddresses(w.view, w.options)
	w.out.health = &HealthPort{
		Port: w.svc.HealthCheckNodePort, Service: service, LocalEndpoints: w.countReady(), Addrs: NewAddrSet(addrs...),
	}
	for _, addr := range addrs {
		key := ipvs.Key{Addr: addr, Protocol: ipvs.TCP, Port: w.svc.HealthCheckNodePort}
		w.out.elements = append(w.out.elements, ipvs.Element{Set: ipvs.Served, Key: key})
	}
}

// port plans the virtual servers of one port: one for each address, and the NodePorts.
func (w *planning) port(port view.Port) {
	for _, a := range w.out.Addresses {
		if a.AnnounceOnly || !w.svc.Families.Has(a.IP) {
			continue
		}
		key := ipvs.Key{Addr: a.IP, Protocol: port.Protocol, Port: port.Port}
		switch a.Kind {
		case view.ClusterIP:
			w.clusterIP(key, port)
		case view.External:
			w.external(key, port, !isHost(w.view, a.IP, w.node))
		case view.LoadBalancer:
			w.loadBalancer(key, port, true)
		case view.Foreign:
			w.loadBalancer(key, port, !isHost(w.view, a.IP, w.node))
		}
	}
	if !w.svc.NodePorts || port.NodePort == 0 {
		return
	}
	for _, addr := range nodePortAddresses(w.view, w.options) {
		if w.svc.Families.Has(addr) {
			w.external(ipvs.Key{Addr: addr, Protocol: port.Protocol, Port: port.NodePort}, port, false)
		}
	}
}

// clusterIP plans a virtual server for clients inside the cluster. With policy Local they are dropped while endpoints
// exist, but none here (ipvs.md 2.3.6). Without Pod sources no client is known to be outside: then only clients on the
// node itself and hairpins are masqueraded (2.2.4), which needs no element.
func (w *planning) clusterIP(key ipvs.Key, port view.Port) {
	servers := w.list(port, key.Addr.Is4(), w.svc.InternalLocal)
	elements := []ipvs.Element{{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}}}
	if w.pods.of(key.Addr) {
		elements = append(elements, ipvs.Element{Set: ipvs.MasqueradedUnlessPod, Key: key})
	}
	if w.svc.InternalLocal && servers.chosen == 0 && w.list(port, key.Addr.Is4(), false).chosen > 0 {
		elements = append(elements, ipvs.Element{Set: ipvs.Dropped, Key: key})
	}
	w.add(key, port, virtual{Server: w.virtualServer(servers), Local: true, Elements: elements})
}

// isHost reports whether an address is one of this node itself, which an external IP may be. It must not be taken from
// the node, nor may the node's own ports be refused there (ipvs.md 1.3.2).
func isHost(v *view.View, addr netip.Addr, node view.Node) bool {
	_, host := v.Host[addr]
	return host || slices.Contains(node.Addresses, addr)
}

// external plans a virtual server for clients from anywhere. own is unset if the address is the node's own. With policy
// Local, external clients get this node's endpoints and keep their address, or are dropped while only other nodes have
// endpoints. Clients inside the cluster get any endpoint (ipvs.md 2.3.6, 3.11).
func (w *planning) external(key ipvs.Key, port view.Port, own bool) {
	all := w.list(port, key.Addr.Is4(), false)
	v := virtual{Local: own}
	if own {
		v.Elements = append(v.Elements, ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}})
	}
	if !w.svc.Local {
		v.Server = w.virtualServer(all)
		v.Elements = append(v.Elements, ipvs.Element{Set: ipvs.Masqueraded, Key: key})
		w.add(key, port, v)
		return
	}
	here := w.list(port, key.Addr.Is4(), true)
	v.Server = w.virtualServer(here)
	if !maps.Equal(here.servers, all.servers) {
		internal := w.virtualServer(all)
		v.ClusterInternal = &internal
	}
	if here.chosen == 0 && all.chosen > 0 {
		v.Elements = append(v.Elements, ipvs.Element{Set: ipvs.Dropped, Key: key})
	}
	w.add(key, port, v)
}

// loadBalancer plans a virtual server for a LoadBalancer address: an external one with source ranges, optionally
// forwarded through the nodes. In that case every packet is masqueraded, because the other node's reply must return
// through this node.
func (w *planning) loadBalancer(key ipvs.Key, port view.Port, own bool) {
	if w.svc.Forwarding != view.ToNodePort || port.NodePort == 0 {
		w.external(key, port, own)
	} else {
		via := w.viaNodes(port, key.Addr.Is4())
		v := virtual{Server: w.virtualServer(via), Local: own, Elements: []ipvs.Element{{Set: ipvs.Masqueraded, Key: key}}}
		if own {
			v.Elements = append(v.Elements, ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}})
		}
		if w.svc.Scheduler == "" && v.Server.Scheduler == ipvs.RoundRobin {
			v.Server.Scheduler = weightedRoundRobin // the weights of the nodes differ
		}
		if all := w.list(port, key.Addr.Is4(), false); w.svc.Local && !maps.Equal(via.servers, all.servers) {
			internal := w.virtualServer(all)
			v.ClusterInternal = &internal
		}
		w.add(key, port, v)
	}
	v := w.out.virtuals[key]
	v.Elements = sorted(append(v.Elements, w.ranges(key)...))
	w.out.virtuals[key] = v
}

const weightedRoundRobin = "wrr"

// add adds a virtual server of a port.
func (w *planning) add(key ipvs.Key, port view.Port, v virtual) {
	v.Port = port.Port
	v.Elements = sorted(append(v.Elements, ipvs.Element{Set: ipvs.Served, Key: key}))
	w.out.virtuals[key] = v
}

// acceptEndpoints adds the filter elements for the endpoint addresses (ipvs.md 2.3.5) and for those on this node, which
// may connect to themselves (2.2.2).
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

// sorted returns the elements sorted, without duplicates, in a slice without spare capacity.
func sorted(elements []ipvs.Element) []ipvs.Element {
	slices.SortFunc(elements, ipvs.Element.Compare)
	elements = slices.Compact(elements)
	return append(make([]ipvs.Element, 0, len(elements)), elements...)
}

// virtualServer returns a virtual server with these real servers.
func (w *planning) virtualServer(l list) ipvs.VirtualServer {
	return ipvs.VirtualServer{Settings: w.settings(), RealServers: l.servers}
}

func (w *planning) settings() ipvs.Settings {
	s := ipvs.Settings{Scheduler: w.svc.Scheduler, Flags: w.svc.Flags}
	if s.Scheduler == "" {
		s = ipvs.Settings{Scheduler: cmp.Or(w.options.Scheduler, ipvs.RoundRobin), Flags: w.options.Flags}
	}
	if w.svc.Affinity > 0 {
		s.Flags, s.Timeout = s.Flags|ipvs.Persistent, w.svc.Affinity
	}
	return s
}
