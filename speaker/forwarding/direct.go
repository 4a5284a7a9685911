package forwarding

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
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
