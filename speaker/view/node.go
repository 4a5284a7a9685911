package view

import (
	"net/netip"
	"slices"
)

// Node is a node of the cluster.
type Node struct {
	Labels map[string]string
	// Addresses are the InternalIPs; only the first of each family counts.
	Addresses []netip.Addr
	// Reached are all InternalIPs and ExternalIPs.
	Reached  []netip.Addr
	PodCIDRs []netip.Prefix
	// BeingDeleted is set if the Node is being deleted or marked for removal by the cluster autoscaler.
	BeingDeleted bool
	// Stopping is set if the node is likely to stop soon: it is cordoned, shutting down, or out of service. It only
	// affects whether an ending process is expected back.
	Stopping bool
	// Excluded is set while external load balancers must leave the node out.
	Excluded bool
	// NetworkUnavailable is set while the node's network is not set up.
	NetworkUnavailable bool
	// Ready is the Ready condition. It affects which node writes a status and how asymmetric links are resolved.
	Ready bool
}

// Address returns the node's address in a family.
func (n Node) Address(v4 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == v4 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return n.Addresses[i], true
}

// Zone returns the zone of the node, empty for none.
func (n Node) Zone() string { return n.Labels[LabelZone] }

// Decommissioning reports whether the node is being decommissioned, so that an ending process is not expected back
// soon.
func (n Node) Decommissioning() bool { return n.Stopping || n.BeingDeleted || n.Excluded }

// LabelZone is a label of Nodes (k8s.io/api/core/v1).
const LabelZone = "topology.kubernetes.io/zone"

// Link is a network interface that is up, has carrier and can carry ARP or NDP.
type Link struct {
	Name string
	// Subnets are those of its addresses, without link-local ones.
	Subnets []netip.Prefix
	// Elsewhere are subnets of its addresses that another interface, by name, has as well and that the kernel sends to
	// through that one.
	Elsewhere map[netip.Prefix]string
	// Index and MAC identify it.
	Index int
	MAC   string
}
