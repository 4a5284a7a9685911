package ipvs

import "net/netip"

// Firewall is what the packet filter must hold for the virtual servers of a node. The zero value is an empty one.
type Firewall struct {
	// Addrs are the virtual addresses. A packet to one of them that asks for a port not in Served is rejected, so that
	// the node's own sockets are not reachable through it (ipvs.md 2.3.3).
	Addrs map[netip.Addr]struct{}
	// Served are the virtual servers that exist.
	Served map[Key]struct{}
	// Masquerade are the virtual servers whose clients' source address is rewritten to the node's
	// (externalTrafficPolicy: Cluster, ipvs.md 2.2.3).
	Masquerade map[Key]struct{}
}
