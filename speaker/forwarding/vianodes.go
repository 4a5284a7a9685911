package forwarding

import (
	"maps"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// viaNodes returns the real servers of a port whose Service has Forwarding ToNodePort: the NodePorts of the other
// nodes, with policy Local only of nodes with an endpoint. This node uses its own endpoints directly, because a packet
// that IPVS delivers locally passes no NodePort of another proxy. If it is the only node, it uses all endpoints that
// the policy allows.
//
// The weight of a node comes from its probe. Before the first result, or if the probe returns no weight, it comes from
// the slices. A node whose probe fails gets weight 0. If no real server would remain, failed probes are ignored: the
// cause is more likely in the probes than in the nodes, such as a firewall or another healthz address of the proxy.
//
// An unreachable node and its endpoints are excluded before that, even if it has no endpoint. If then no real server
// takes connections, and one would otherwise, no node counts as unreachable.
func (w *planning) viaNodes(port view.Port, v4 bool) list {
	w.out.nodes = true
	out := w.viaNodesOf(port, v4, false)
	if len(w.view.Unreachable) > 0 && out.chosen == 0 {
		if open := w.viaNodesOf(port, v4, true); open.chosen > 0 {
			return open
		}
	}
	return out
}

// viaNodesOf is viaNodes without unreachable nodes, or with failOpen as if all were reachable.
func (w *planning) viaNodesOf(port view.Port, v4, failOpen bool) list {
	own, all := w.list(port, v4, true), w.list(port, v4, false)
	counts, terminating := w.nodeCounts(port, v4, failOpen)
	listed, _ := w.nodeCounts(port, v4, true) // probes of unreachable nodes continue
	here := counts[w.name] > 0                // otherwise local endpoints only finish their connections: other nodes can take new ones
	share := uint32(1)
	if here {
		share = uint32(own.chosen) // all nodes get the same weight, and each local endpoint counts 1
	}
	otherNodes := w.otherNodes(port, v4, failOpen, func(name string) (weight uint32, use bool) {
		if !w.svc.Local {
			return share, true
		}
		_, drains := terminating[name]
		return counts[name], counts[name]+listed[name] > 0 || drains && port.Protocol == ipvs.TCP
	})
	switch {
	case all.chosen == 0:
		return all // no endpoint at all: refused here, not by a node
	case !otherNodes.any && !w.svc.Local:
		return all
	}
	nodes := otherNodes.servers
	for at, server := range own.servers {
		if !here && port.Protocol != ipvs.TCP {
			continue
		}
		if !here {
			server = drained
		}
		nodes[at] = server
	}
	if countTakers(nodes) == 0 {
		maps.Copy(nodes, otherNodes.failed)
	}
	return list{servers: nodes, chosen: countTakers(nodes)}
}

// otherNodes are the NodePorts of the other nodes.
type otherNodes struct {
	// any is set if there are any, reachable or not.
	any bool
	// servers have the weights of their probes; failed are those with a failed probe, with their weight without it.
	servers, failed map[netip.AddrPort]ipvs.RealServer
}

// otherNodes returns the NodePorts of the other nodes, each with the weight from share.
func (w *planning) otherNodes(port view.Port, v4, failOpen bool, share func(name string) (weight uint32, use bool)) otherNodes {
	out := otherNodes{servers: map[netip.AddrPort]ipvs.RealServer{}, failed: map[netip.AddrPort]ipvs.RealServer{}}
	for name, node := range w.view.Nodes {
		addr, ok := node.Address(v4)
		if !ok || name == w.name || node.BeingDeleted || node.Excluded {
			continue
		}
		weight, use := share(name)
		if !use {
			continue
		}
		out.any, w.out.uses[name] = true, struct{}{}
		at, checked := netip.AddrPortFrom(addr, port.NodePort), w.probed(name, addr, weight)
		if since, is := w.view.Unreachable[name]; is && !failOpen {
			if w.stays(port.Protocol, since) {
				out.servers[at] = drained
			}
			continue
		}
		out.servers[at] = ipvs.RealServer{Weight: checked, Forward: ipvs.Masquerade}
		if checked == 0 && weight > 0 {
			out.failed[at] = ipvs.RealServer{Weight: min(weight, ipvs.MaxWeight), Forward: ipvs.Masquerade}
		}
	}
	return out
}

// countTakers counts the real servers that take new connections.
func countTakers(servers map[netip.AddrPort]ipvs.RealServer) (n int) {
	for _, server := range servers {
		if server.Weight > 0 {
			n++
		}
	}
	return n
}

// nodeCounts returns the number of endpoints that policy Local would use on each node, and the nodes with terminating
// endpoints. Those on unreachable nodes count only with failOpen.
func (w *planning) nodeCounts(port view.Port, v4, failOpen bool) (counts map[string]uint32, terminating map[string]struct{}) {
	ready, usable := map[string]uint32{}, map[string]uint32{}
	terminating = map[string]struct{}{}
	for _, e := range w.candidates(port, v4) {
		_, unreachable := w.unreachable(e)
		switch {
		case e.Node == "":
			continue
		case unreachable && !failOpen: // takes none
		case e.Ready:
			ready[e.Node]++
		case e.Usable():
			usable[e.Node]++
		}
		if e.Terminating {
			terminating[e.Node] = struct{}{}
		}
	}
	if len(ready) == 0 {
		return usable, terminating
	}
	return ready, terminating
}

// The probe of a node by policy: its healthCheckNodePort with Local, which answers on any path;
// its service proxy with Cluster.
const (
	healthzPort, healthzPath = 10256, "/healthz"
	healthCheckPath          = "/"
)

// probed requests the probe of a node and returns its weight according to the result.
func (w *planning) probed(name string, addr netip.Addr, weight uint32) uint32 {
	check := view.Check{Node: name, Addr: addr, Port: healthzPort, Path: healthzPath}
	byWeight := w.svc.Local && w.svc.HealthCheckNodePort != 0
	if byWeight {
		check.Port, check.Path = w.svc.HealthCheckNodePort, healthCheckPath
	}
	w.checks[check] = struct{}{}
	result, known := w.view.Checks[check]
	switch {
	case known && !result.Healthy:
		return 0
	case known && byWeight && result.Weight > 0 && weight > 0:
		weight = result.Weight
	}
	return min(weight, ipvs.MaxWeight)
}
