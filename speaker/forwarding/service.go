package forwarding

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// servicePlan is the part of the plan that one Service needs on this node.
type servicePlan struct {
	view.Served
	// refused are the addresses that may not be served or announced here.
	refused  map[netip.Addr]pools.Refusal
	virtuals map[ipvs.Key]*virtual
	// unserved is why there are no virtual servers, if there are none.
	unserved view.Reason
	// lists are the lists of real servers that virtual servers share, with the draining ones.
	lists map[ListKey]list
	// since is when the ready TCP endpoints of each port became ready, zero for those that are not new. Its keys have
	// Local unset.
	since map[ListKey]map[netip.AddrPort]time.Time
	// directed are the first tiers of its virtual servers. fallback is why there are none although there should be.
	directed map[ipvs.Key]directed
	fallback view.Fallback
	// silent are the nodes of its endpoints whose speakers are not received.
	silent map[string]silence
	// health is the healthCheckNodePort to serve, nil for none.
	health *HealthPort
	// elements are filter elements that belong to no single virtual server.
	elements []ipvs.Element
	// checks are the probes of nodes and of new endpoints that it needs.
	checks []view.Check
	// nodes is set if the plan depends on Nodes other than this one.
	nodes bool
	// uses are the other Nodes with an endpoint of it, or that it forwards through.
	uses map[string]struct{}
	// unreachable counts its endpoints on unreachable nodes, by node, for nodes that have any.
	unreachable map[string]view.UnreachableEndpoints
	// wake is when to plan the Service again without a change, zero for never.
	wake time.Time
}

// planning is the plan of one Service in progress.
type planning struct {
	view *view.View
	name string // of this node
	// withArriving is set if the nodes with new endpoints only are needed.
	withArriving bool
	options      Options
	now          time.Time
	svc          view.Service
	slices       map[string]view.Slice
	node         view.Node // this one
	pods         podsKnown
	// before are the lists of the last plan of the Service, since the times at which its endpoints became ready.
	before map[ListKey]list
	since  map[ListKey]map[netip.AddrPort]time.Time
	asked  []view.Check // by the last plan, sorted
	checks map[view.Check]struct{}
	// nodes are the nodes of tunnels. direct is set if the Service is forwarded directly, directIPv6 if its IPv6
	// addresses are, too. directed are the first tiers of the last plan, spreads the numbers of endpoints that get slots.
	nodes      *nodeTable
	direct     bool
	directIPv6 bool
	directed   map[ipvs.Key]directed
	spreads    map[ListKey]map[uint16]int
	silent     map[string]silence // of the last plan
	// byPort are the candidates of each port; the keys have Local unset.
	byPort map[ListKey]map[netip.AddrPort]*view.Endpoint
	// endpoints are the addresses in the slices, true for those on this node.
	endpoints map[netip.Addr]bool
	out       servicePlan
}

// wake has the Service planned again at that time at the latest.
func (w *planning) wake(at time.Time) { w.out.wake = incremental.Earlier(w.out.wake, at) }

// isLocal reports whether the endpoint is on this node; one without a node is on none.
func (w *planning) isLocal(e *view.Endpoint) bool { return e.Node != "" && e.Node == w.name }

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

// add adds a virtual server of a port.
func (w *planning) add(key ipvs.Key, port view.Port, v *virtual) {
	v.Port = port.Port
	v.Elements = sorted(append(v.Elements, ipvs.Element{Set: ipvs.Served, Key: key}))
	w.out.virtuals[key] = v
}

// sorted returns the elements sorted, without duplicates, in a slice without spare capacity.
func sorted(elements []ipvs.Element) []ipvs.Element {
	slices.SortFunc(elements, ipvs.Element.Compare)
	elements = slices.Compact(elements)
	return append(make([]ipvs.Element, 0, len(elements)), elements...)
}

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
			w.external(key, port, w.svc.Local, !isHost(w.view, a.IP, w.node))
		case view.LoadBalancer:
			w.loadBalancer(key, port, w.direct && (w.directIPv6 || a.IP.Is4()), true)
		case view.Foreign:
			w.loadBalancer(key, port, false, !isHost(w.view, a.IP, w.node))
		}
	}
	if !w.svc.NodePorts || port.NodePort == 0 {
		return
	}
	for _, addr := range nodePortAddresses(w.view, w.node, w.options) {
		if w.svc.Families.Has(addr) {
			w.external(ipvs.Key{Addr: addr, Protocol: port.Protocol, Port: port.NodePort}, port, w.svc.Local, false)
		}
	}
}

// clusterIP plans a virtual server for clients inside the cluster. With policy Local they are dropped while endpoints
// exist, but none here. Without Pod sources no client is known to be outside: then only clients on the
// node itself and hairpins are masqueraded, which needs no element.
func (w *planning) clusterIP(key ipvs.Key, port view.Port) {
	servers := w.list(port, key.Addr.Is4(), w.svc.InternalLocal)
	elements := []ipvs.Element{{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}}}
	if w.pods.of(key.Addr) {
		elements = append(elements, ipvs.Element{Set: ipvs.MasqueradedUnlessPod, Key: key})
	}
	if w.svc.InternalLocal && servers.chosen == 0 && w.list(port, key.Addr.Is4(), false).chosen > 0 {
		elements = append(elements, ipvs.Element{Set: ipvs.Dropped, Key: key})
	}
	w.add(key, port, &virtual{Server: w.virtualServer(servers), Local: true, Elements: elements})
}

// external plans a virtual server for clients from anywhere. own is unset if the address is the node's own. With local,
// external clients get this node's endpoints and keep their address, or are dropped while only other nodes have
// endpoints. Clients inside the cluster get any endpoint.
func (w *planning) external(key ipvs.Key, port view.Port, local, own bool) {
	all := w.list(port, key.Addr.Is4(), false)
	v := &virtual{Local: own}
	if own {
		v.Elements = append(v.Elements, ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}})
	}
	if !local {
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
// forwarded directly or through the nodes. If direct, packets reach it once their node is selected, so it has only this
// node's endpoints under either policy. Through the nodes, every packet is masqueraded, because the other node's reply
// must return through this node.
func (w *planning) loadBalancer(key ipvs.Key, port view.Port, direct, own bool) {
	switch {
	case direct:
		w.external(key, port, true, own)
		v := w.out.virtuals[key]
		v.Direct, v.Digest = w.directedTo(key, port)
	case w.svc.Forwarding != view.ToNodePort || port.NodePort == 0:
		w.external(key, port, w.svc.Local, own)
	default:
		via := w.viaNodes(port, key.Addr.Is4())
		v := &virtual{Server: w.virtualServer(via), Local: own, Elements: []ipvs.Element{{Set: ipvs.Masqueraded, Key: key}}}
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
}

const weightedRoundRobin = "wrr"

// virtual is the part of the plan that one Service needs for one virtual server. It is immutable once planned: the
// plan of the Service, its claim and what is installed share it.
type virtual struct {
	Server ipvs.VirtualServer
	// ClusterInternal is the virtual server for clients on this node, Pods and processes; nil if it is the same.
	ClusterInternal *ipvs.VirtualServer
	// Direct is its first tier; nil if it has none. Digest is that of its slots, 0 for none.
	Direct *ipvs.Directed
	Digest uint64
	// Port is the Service port.
	Port uint16
	// Local is set if its address must be local; a node's own address must not.
	Local bool
	// Elements are the filter elements that it needs, without duplicates. Several virtual servers may need the same
	// one.
	Elements []ipvs.Element
}

func (v *virtual) equal(w *virtual) bool {
	if (v.ClusterInternal == nil) != (w.ClusterInternal == nil) || v.ClusterInternal != nil && !equalServers(*v.ClusterInternal, *w.ClusterInternal) {
		return false
	}
	if (v.Direct == nil) != (w.Direct == nil) || v.Direct != nil && *v.Direct != *w.Direct {
		return false
	}
	return v.Port == w.Port && v.Local == w.Local && equalServers(v.Server, w.Server) && slices.Equal(v.Elements, w.Elements)
}

func equalServers(a, b ipvs.VirtualServer) bool {
	return a.Settings == b.Settings && maps.Equal(a.RealServers, b.RealServers)
}

// takesConnections reports whether a real server takes new connections.
func takesConnections(vs ipvs.VirtualServer) bool {
	for _, server := range vs.RealServers {
		if server.Weight > 0 {
			return true
		}
	}
	return false
}

// claim is the request of one Service for a virtual server. Of several claims for one key the oldest wins.
type claim struct {
	service pools.ServiceKey
	created int64
	virtual *virtual
}

// compare orders claims by age, then by name.
func (c claim) compare(d claim) int {
	return cmp.Or(cmp.Compare(c.created, d.created), cmp.Compare(c.service.Namespace, d.service.Namespace),
		cmp.Compare(c.service.Name, d.service.Name))
}

// claim records the request of a Service, replaces its previous one for the same key, and installs the winner. It
// returns the recorded one, which is the previous one if they are equal.
func (p *Planner) claim(k ipvs.Key, c claim) *virtual {
	claims := p.claims[k]
	if i := slices.IndexFunc(claims, func(d claim) bool { return d.service == c.service }); i >= 0 {
		if claims[i].created == c.created && claims[i].virtual.equal(c.virtual) {
			return claims[i].virtual
		}
		claims = slices.Delete(claims, i, i+1)
	}
	i, _ := slices.BinarySearchFunc(claims, c, claim.compare)
	p.claims[k] = slices.Insert(claims, i, c)
	p.install(k)
	return c.virtual
}

// none is that of no claim.
var none = &virtual{}

// disclaim deletes the request of a Service; the next one wins.
func (p *Planner) disclaim(k ipvs.Key, service pools.ServiceKey) {
	claims := slices.DeleteFunc(p.claims[k], func(c claim) bool { return c.service == service })
	incremental.Set(p.claims, k, claims, len(claims) > 0)
	p.install(k)
}

// install updates the desired state with the oldest claim of a key.
func (p *Planner) install(k ipvs.Key) {
	before, had := p.installed[k]
	if !had {
		before.virtual = none
	}
	after := claim{virtual: none}
	claims := p.claims[k]
	if len(claims) > 0 {
		after = claims[0]
	}
	if had && len(claims) > 0 && before.service == after.service && before.virtual.equal(after.virtual) {
		return // a younger claim came or went
	}
	incremental.Set(p.installed, k, after, len(claims) > 0)
	for _, c := range []claim{before, after} {
		if c.service != (pools.ServiceKey{}) && before.service != after.service {
			p.changed.Services[c.service] = struct{}{}
		}
	}
	p.changed.Keys[k] = struct{}{}
	incremental.Set(p.forwarding.Table, k, after.virtual.Server, len(claims) > 0)
	incremental.Set(p.forwarding.ServicePorts, k, ServicePort{Service: after.service, Port: after.virtual.Port}, len(claims) > 0)
	if keys := incremental.Index[netip.Addr, ipvs.Key](p.forwarding.Keys); len(claims) > 0 {
		keys.Add(k.Addr, k)
	} else {
		keys.Remove(k.Addr, k)
	}
	if after.virtual.ClusterInternal != nil {
		p.forwarding.ClusterInternal[k] = *after.virtual.ClusterInternal
	} else {
		delete(p.forwarding.ClusterInternal, k)
	}
	p.forwarding.SlotsDigest += after.virtual.Digest - before.virtual.Digest
	if after.virtual.Direct != nil {
		p.forwarding.Direct.Virtuals[k] = *after.virtual.Direct
	} else {
		delete(p.forwarding.Direct.Virtuals, k)
	}
	p.count(after.virtual.Elements, before.virtual.Elements)
	p.countLocal(k.Addr, after.virtual.Local, before.virtual.Local)
}

// ranges returns the filter elements that restrict a virtual server to the Service's source ranges. If
// any range was given, a family without one is closed. A range of length 0 opens its family.
//
// Clients on the node itself have the virtual address as their source. If the ranges contain an address of the node,
// the virtual address is allowed, too.
func (w *planning) ranges(key ipvs.Key) []ipvs.Element {
	if !w.svc.Restricted {
		return nil
	}
	var sources []netip.Prefix
	self := false
	for _, prefix := range w.svc.Sources {
		if prefix.Addr().Is4() != key.Addr.Is4() {
			continue
		}
		if prefix.Bits() == 0 {
			return nil
		}
		sources = append(sources, prefix)
		self = self || w.holdsNode(prefix)
	}
	if self {
		sources = append(sources, netip.PrefixFrom(key.Addr, key.Addr.BitLen()))
	}
	out := []ipvs.Element{{Set: ipvs.Restricted, Key: key}}
	for _, prefix := range ipvs.Disjoint(sources) {
		out = append(out, ipvs.Element{Set: ipvs.Allowed, Key: key}.From(prefix))
	}
	return out
}

// holdsNode reports whether the prefix contains an address of this node.
func (w *planning) holdsNode(prefix netip.Prefix) bool {
	for _, a := range w.node.Addresses {
		if prefix.Contains(a) {
			return true
		}
	}
	for a := range w.view.Host {
		if prefix.Contains(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return true
		}
	}
	return false
}

// count adds one use of some elements and removes one use of others.
func (p *Planner) count(more, less []ipvs.Element) {
	for _, e := range more {
		if _, there := p.forwarding.Filter[e]; there {
			p.shared[e]++
			continue
		}
		p.forwarding.Filter[e] = struct{}{}
		p.changed.Elements[e] = struct{}{}
	}
	for _, e := range less {
		if others := p.shared[e]; others > 0 {
			incremental.Set(p.shared, e, others-1, others > 1)
			continue
		}
		delete(p.forwarding.Filter, e)
		p.changed.Elements[e] = struct{}{}
	}
}

// countLocal counts the virtual servers that make an address local.
func (p *Planner) countLocal(addr netip.Addr, now, before bool) {
	n := p.locals[addr]
	switch {
	case now && !before:
		n++
	case before && !now:
		n--
	default:
		return
	}
	_, was := p.forwarding.Local[addr]
	incremental.Set(p.locals, addr, n, n > 0)
	incremental.Set(p.forwarding.Local, addr, struct{}{}, n > 0)
	if was != (n > 0) {
		p.changed.Local[addr] = struct{}{}
	}
}
