package forwarding

import (
	"maps"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

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
