package forwarding

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// directed is the first tier of a virtual server, with the numbers of endpoints by node that its slots follow from, and
// the digest of the slots.
type directed struct {
	ipvs.Directed
	spread map[uint16]int
	digest uint64
}

// decideDirect decides whether the Service is forwarded directly. If one endpoint cannot be reached through
// a tunnel, all are forwarded to as with ToPod; if only IPv6 packets cannot, all IPv6 addresses are. Addresses that
// kube-proxy forwards cannot be directed.
func (w *planning) decideDirect() {
	ours := func(a view.Address) bool { return a.Kind == view.LoadBalancer }
	six := func(a view.Address) bool { return ours(a) && a.IP.Is6() }
	announceOnly := func(a view.Address) bool { return a.AnnounceOnly }
	if w.svc.Forwarding == view.Direct && slices.ContainsFunc(w.out.Addresses, ours) && !slices.ContainsFunc(w.out.Addresses, announceOnly) {
		w.out.fallback = w.obstacle()
		w.direct = w.out.fallback == view.Fallback{}
	}
	if w.direct && slices.ContainsFunc(w.out.Addresses, six) {
		w.out.fallback = w.obstacleIPv6()
		w.directIPv6 = w.out.fallback == view.Fallback{}
	}
	direct := w.direct && w.out.fallback == view.Fallback{}
	w.out.DirectLocal = w.svc.Local && direct
	local := w.svc.Local && w.svc.Forwarding != view.ToNodePort
	w.out.LocalIPv4, w.out.LocalIPv6 = local && !w.direct, local && !direct
}

// obstacleIPv6 returns why the IPv6 addresses of a Service that is forwarded directly cannot be.
func (w *planning) obstacleIPv6() view.Fallback {
	if w.view.DirectIPv4Only {
		return view.Fallback{Reason: view.NoIPv6Tunnel, Node: w.name}
	}
	var first view.Fallback
	for _, slice := range w.slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Addr.Is6() && (e.Ready || e.Usable()) && e.Node != w.name && w.view.Members.Peers[e.Node].DirectIPv4Only {
				first = earlier(first, view.Fallback{Reason: view.NoIPv6Tunnel, Node: e.Node})
			}
		}
	}
	return first
}

// obstacle returns why the Service cannot be forwarded directly, the first reason in order; the zero Fallback for none.
// An endpoint on a node that does not exist is none: it is about to be deleted, and takes no connections. One on a
// node that is awaited is none as long as there are others.
func (w *planning) obstacle() view.Fallback {
	if w.view.NotDirect != "" {
		return view.Fallback{Reason: w.view.NotDirect}
	}
	if !w.nodes.usable(w.name) {
		return view.Fallback{Reason: view.TunnelUnavailable}
	}
	var first, awaited view.Fallback
	reachable := false
	for _, slice := range w.slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if _, exists := w.view.Nodes[e.Node]; !e.Ready && !e.Usable() || e.Node != "" && !exists {
				continue
			}
			why := view.Fallback{Reason: view.NodeWithoutTunnel, Node: e.Node}
			switch {
			case e.Node == "":
				first = earlier(first, view.Fallback{Reason: view.EndpointWithoutNode, Endpoint: e.Addr})
			case w.tunnelTo(e.Node) == hasTunnel:
				reachable = true
			case w.tunnelTo(e.Node) == tunnelAwaited:
				awaited = earlier(awaited, why)
			default:
				first = earlier(first, why)
			}
		}
	}
	if first == (view.Fallback{}) && !reachable {
		return awaited
	}
	return first
}

// earlier returns the first of two in order; the zero Fallback is none.
func earlier(a, b view.Fallback) view.Fallback {
	if a == (view.Fallback{}) || b.Compare(a) < 0 {
		return b
	}
	return a
}

// directedTo returns the first tier of a virtual server, nil without an endpoint, and the digest of its slots. It
// continues that of the last plan.
func (w *planning) directedTo(key ipvs.Key, port view.Port) (*ipvs.Directed, uint64) {
	out := directed{spread: w.spread(port, key.Addr.Is4())}
	if len(out.spread) == 0 {
		return nil, 0
	}
	last, planned := w.directed[key]
	if !planned && w.view.Members.Observer {
		last = w.withoutThisNode(key, out.spread)
	}
	if out.Slots = last.Slots; !maps.Equal(last.spread, out.spread) {
		out.Slots = slotsOf(key, out.spread, w.nodes.names)
	}
	out.Before = beforeOf(out.Slots, last.Slots, last.Before, func(node uint16) bool { return w.nodes.names[node] == "" })
	out.ByClient = w.svc.Affinity > 0
	if out.digest = last.digest; !planned || out.Slots != last.Slots || out.ByClient != last.ByClient {
		out.digest = digestOf(key, out.Directed, w.nodes.names)
	}
	if out.Before != out.Slots {
		for _, node := range out.Before {
			if name := w.nodes.names[node]; name != w.name {
				w.out.uses[name] = struct{}{}
			}
		}
	}
	w.out.directed[key] = out
	return &out.Directed, out.digest
}

// withoutThisNode returns the first tier that the other nodes had while this node was away. After its start it may have
// endpoints at once, and their slots, but no connections.
func (w *planning) withoutThisNode(key ipvs.Key, spread map[uint16]int) (before directed) {
	before.spread = maps.Clone(spread)
	delete(before.spread, w.nodes.index[w.name])
	if len(before.spread) > 0 {
		before.Slots = slotsOf(key, before.spread, w.nodes.names)
		before.Before = before.Slots
	}
	return before
}

// spread returns the number of endpoints of a port that get slots, by the index of their node: of those that would take
// new connections, regardless of topology hints, because the slots are equal on all nodes. New endpoints are included
// once this node has checked them, which takes about the same time on every node.
func (w *planning) spread(port view.Port, v4 bool) map[uint16]int {
	key := ListKey{Port: port.Name, Protocol: port.Protocol, IPv4: v4, Slots: true}
	if done, ok := w.spreads[key]; ok {
		return done
	}
	from := maps.Clone(w.candidates(port, v4))
	maps.DeleteFunc(from, func(_ netip.AddrPort, e *view.Endpoint) bool {
		return !w.nodes.usable(e.Node) || w.tunnelTo(e.Node) != hasTunnel
	})
	chosen, _ := w.choose(key, from)
	out, servers := map[uint16]int{}, map[netip.AddrPort]ipvs.RealServer{}
	for at, e := range chosen {
		out[w.nodes.index[e.Node]]++
		servers[at] = pod
	}
	w.spreads[key] = out
	w.out.lists[key] = list{servers: servers, chosen: len(servers)} // those that are no longer new
	return out
}

// tunnel is whether packets can be sent to a node through a tunnel.
type tunnel uint8

const (
	noTunnel tunnel = iota
	hasTunnel
	// tunnelAwaited: the node's speaker was not received yet, and its endpoints get no slots.
	tunnelAwaited
)

// awaitTunnel is how long the speaker of a node may take to be received, from the first endpoint of a Service on it. A
// node that joins runs Pods before its speaker: if they made their Services fall back, connections would break twice.
const awaitTunnel = 30 * time.Second

// silence is since when a node with endpoints of a Service is not received. It is assumed to have tunnels if this node
// was an observer then: it has just started, and the other nodes send to it already.
type silence struct {
	since   time.Time
	assumed bool
}

// tunnelTo returns whether packets can be sent to an existing node; this node needs no tunnel.
func (w *planning) tunnelTo(node string) tunnel {
	peer, received := w.view.Members.Peers[node]
	switch {
	case node == w.name:
		return hasTunnel
	case !w.nodes.usable(node) || received && !peer.Direct:
		return noTunnel
	case received:
		return hasTunnel
	}
	s, known := w.silent[node]
	if !known {
		s = silence{since: w.now, assumed: w.view.Members.Observer}
	}
	w.out.silent[node] = s
	end := s.since.Add(awaitTunnel)
	if !w.now.Before(end) {
		return noTunnel
	}
	w.wake(end)
	if s.assumed {
		return hasTunnel
	}
	return tunnelAwaited
}

// nodeTable assigns indexes to the Nodes, for ipvs.Direct. A Node keeps its index. That of a deleted Node is assigned
// again from the next update on: until then every Service that uses the Node is planned without it.
type nodeTable struct {
	index map[string]uint16
	// names and addrs are by index: an empty name is an unused index, an invalid address that of a Node without one.
	names []string
	addrs []netip.Addr
}

// usable reports whether packets can be sent to a Node, as far as its addresses matter.
func (t *nodeTable) usable(name string) bool {
	i, known := t.index[name]
	return known && t.addrs[i].IsValid()
}

// update assigns indexes to the Nodes of the View.
func (t *nodeTable) update(v *view.View, self string) {
	for _, name := range slices.Sorted(maps.Keys(v.Nodes)) {
		if _, known := t.index[name]; known {
			continue
		}
		i := slices.Index(t.names, "")
		if i < 0 {
			i, t.names = len(t.names), append(t.names, "")
		}
		t.names[i], t.index[name] = name, uint16(i)
	}
	for name, i := range t.index {
		if _, exists := v.Nodes[name]; !exists {
			t.names[i] = ""
			delete(t.index, name)
		}
	}
	t.addrs = make([]netip.Addr, len(t.names)) // the previous slice may be in use
	for name, i := range t.index {
		t.addrs[i] = tunnelAddress(v.Nodes[name], v.Nodes[self])
	}
}

// tunnelAddress returns the address of a Node for tunnels to or from this one, invalid for none: the IPv4 address, or
// the IPv6 address if neither has one. If only one of them has an IPv4 address there is none, so that both agree.
func tunnelAddress(node, self view.Node) netip.Addr {
	four, has4 := node.Address(true)
	_, self4 := self.Address(true)
	if has4 != self4 {
		return netip.Addr{}
	}
	if has4 {
		return four
	}
	six, _ := node.Address(false)
	return six
}

// planNodes updates the nodes of tunnels.
func (p *Planner) planNodes(v *view.View) {
	p.nodes.update(v, p.node)
	direct := &p.forwarding.Direct
	var self netip.Addr
	if i, exists := p.nodes.index[p.node]; exists {
		self = p.nodes.addrs[i]
	}
	if self == direct.Self && slices.Equal(p.nodes.addrs, direct.Nodes) {
		return
	}
	direct.Self, direct.Nodes, p.changed.DirectNodes = self, p.nodes.addrs, true
}

// touchedDirect adds the Services to be forwarded directly whose fallback or slots may differ, besides those that
// changed themselves: the Nodes of their endpoints changed, or whether these or this node can use tunnels.
func (p *Planner) touchedDirect(v *view.View, touched view.Touched, services map[pools.ServiceKey]struct{}) {
	if touched.NotDirect || p.observer != v.Members.Observer {
		maps.Copy(services, p.directs)
	}
	p.observer = v.Members.Observer
	if touched.All {
		clear(p.tunnels)
		for node, peer := range v.Members.Peers {
			incremental.Set(p.tunnels, node, peer.DirectIPv4Only, peer.Direct)
		}
	}
	use := func(node string) {
		for key := range p.usersOf[node] {
			if _, direct := p.directs[key]; direct {
				services[key] = struct{}{}
			}
		}
	}
	for node := range touched.Nodes {
		use(node)
	}
	for node := range touched.Members {
		only, before := p.tunnels[node]
		now := v.Members.Peers[node]
		incremental.Set(p.tunnels, node, now.DirectIPv4Only, now.Direct)
		firstReceived := !now.Direct // possibly: p.tunnels does not distinguish it from an unknown node
		if now.Direct != before || now.DirectIPv4Only != only || firstReceived || p.observer {
			use(node)
		}
	}
}

// variants is the number of different slots of virtual servers with the same endpoints. With more of them, nodes that
// have by chance more or less slots than their share of one have less so of all. With fewer, virtual servers share more
// tables (ipvs/direct).
const variants = 16

// slotsOf assigns each slot of a virtual server to a node by rendezvous hashing. spread are the numbers of endpoints by
// the index of their node: a node takes part once for each. The result is equal on all nodes with the same endpoints,
// whatever their indexes, and depends only on their numbers and on the names of their nodes. One more or less changes
// only its own slots: on average one in n of n endpoints. There must be an endpoint.
//
// The hash is constant. Speakers of different versions share connections during an upgrade, so it must not change.
func slotsOf(key ipvs.Key, spread map[uint16]int, names []string) *ipvs.Slots {
	type candidate struct {
		hash uint64
		node uint16
	}
	var all []candidate
	for node, endpoints := range spread {
		name := hashOfName(names[node])
		for i := range uint64(endpoints) {
			all = append(all, candidate{mix(name + i), node})
		}
	}
	variant := hashOf(netip.AddrPortFrom(key.Addr, 0), 0) % variants
	out := &ipvs.Slots{}
	for slot := range out {
		of := mix(variant*ipvs.NumSlots + uint64(slot))
		first, most := 0, mix(all[0].hash^of)
		for i := 1; i < len(all); i++ {
			rank := mix(all[i].hash ^ of)
			if rank > most || rank == most && names[all[i].node] < names[all[first].node] {
				first, most = i, rank
			}
		}
		out[slot] = all[first].node
	}
	return out
}

// digestOf returns a digest of the slots of a virtual server and of what their hash is over, from the names of the
// nodes. It distinguishes tables that differ by accident, not by design. It must not change: speakers of different
// versions compare it.
func digestOf(key ipvs.Key, d ipvs.Directed, names []string) uint64 {
	digest := hashOf(netip.AddrPortFrom(key.Addr, key.Port), key.Protocol)
	if d.ByClient {
		digest = mix(^digest)
	}
	hashes := map[uint16]uint64{}
	for _, node := range d.Slots {
		hash, known := hashes[node]
		if !known {
			hash = hashOfName(names[node])
			hashes[node] = hash
		}
		digest = mix(digest ^ hash)
	}
	return digest
}

const fnvBasis, fnvPrime = 0xcbf29ce484222325, 0x100000001b3

func hashOfName(name string) uint64 {
	hash := uint64(fnvBasis)
	for i := range len(name) {
		hash = (hash ^ uint64(name[i])) * fnvPrime
	}
	return mix(hash)
}

// hashOf hashes an address, a port and a protocol with 64-bit FNV-1a, and mixes the result.
func hashOf(at netip.AddrPort, protocol ipvs.Protocol) uint64 {
	hash := uint64(fnvBasis)
	for _, b := range at.Addr().As16() {
		hash = (hash ^ uint64(b)) * fnvPrime
	}
	for _, b := range [...]byte{byte(at.Port() >> 8), byte(at.Port()), byte(protocol)} {
		hash = (hash ^ uint64(b)) * fnvPrime
	}
	return mix(hash)
}

// mix is the finalizer of splitmix64: each bit of the result depends on each bit of x, and no two x have the same
// result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// beforeOf returns, for each slot, the node before its last change: that of last where it differs from now, else that
// of the earlier changes. Without last, the nodes are those of now. A node that gone reports is replaced by that of
// now. The result may share its arguments.
func beforeOf(now, last, before *ipvs.Slots, gone func(node uint16) bool) *ipvs.Slots {
	if last == nil {
		return now
	}
	out := *before
	for slot, node := range now {
		if last[slot] != node {
			out[slot] = last[slot]
		}
		if gone(out[slot]) {
			out[slot] = node
		}
	}
	switch out {
	case *now:
		return now
	case *before:
		return before
	}
	return &out
}
