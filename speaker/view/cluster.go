package view

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// Service is the part of a Service that the data plane needs.
type Service struct {
	Addresses []Address
	Ports     []Port
	// Labels are those of a load balancer, for the selectors of advertisements.
	Labels map[string]string
	// Local is externalTrafficPolicy: Local; the client address is kept and only endpoints on this node are used.
	Local bool
	// InternalLocal is internalTrafficPolicy: Local; ClusterIPs use only endpoints on this node.
	InternalLocal bool
	// Families are those in which the Service has a ClusterIP; it is served in no other.
	Families Families
	// NodePorts is set if IronLB serves the NodePorts and the HealthCheckNodePort here: it alone serves the Service.
	NodePorts bool
	// HealthCheckNodePort lets load balancers find the nodes with endpoints, 0 for none.
	HealthCheckNodePort uint16
	// Restricted is set if any source range was given, valid or not; Sources are the ranges that may then connect.
	Restricted bool
	Sources    []netip.Prefix
	// Affinity is the timeout of session affinity by client address in seconds, 0 for none.
	Affinity uint32
	// Scheduler and its Flags, if the Service specifies one.
	Scheduler string
	Flags     ipvs.Flags
	// Forwarding is how a LoadBalancer address is to be forwarded to a Pod. What is planned may differ: see Served.
	Forwarding Forwarding
	// TooLarge is set if it exceeds a budget: it is not served.
	TooLarge bool
	// Created orders Services that claim the same address and port: the oldest wins.
	Created int64
}

// Families of addresses; the zero value is both.
type Families uint8

// One family only.
const (
	OnlyIPv4 Families = iota + 1
	OnlyIPv6
)

// Has reports whether the address is of one of the families.
func (f Families) Has(a netip.Addr) bool {
	return f == 0 || a.Is4() == (f == OnlyIPv4)
}

// Forwarding is how a LoadBalancer address is forwarded to a Pod.
type Forwarding uint8

const (
	// ToPod forwards to the endpoints.
	ToPod Forwarding = iota
	// ToNodePort forwards to the NodePorts of the nodes; each node forwards to a Pod.
	ToNodePort
	// Direct forwards to a node with an endpoint, the same one on every node, through a tunnel; that node forwards to
	// its own endpoints, and their answers leave from there.
	Direct
)

// Address is an address of a Service, comparable with ==.
type Address struct {
	IP netip.Addr
	// Pool is the pool that the IronLB controller recorded at allocation, empty for none. The pool that contains the
	// address now, if any, has precedence.
	Pool string
	Kind AddressKind
	// AnnounceOnly is set if kube-proxy forwards the address (ipMode VIP alongside kube-proxy): IronLB only announces
	// it.
	AnnounceOnly bool
}

// AddressKind is the origin of a Service address, which determines its policies.
type AddressKind uint8

const (
	// LoadBalancer: from status.loadBalancer.ingress, allocated by the IronLB controller.
	LoadBalancer AddressKind = iota
	// External: from spec.externalIPs.
	External
	// ClusterIP: from spec.clusterIPs.
	ClusterIP
	// Foreign: from status.loadBalancer.ingress, allocated by another controller.
	Foreign
)

// Port is a port of a Service or of an EndpointSlice.
type Port struct {
	Name     string
	Protocol ipvs.Protocol
	Port     uint16
	// NodePort of a Service port, 0 for none.
	NodePort uint16
}

// Slice is an EndpointSlice: Pods that share the numbers of their named ports.
type Slice struct {
	Ports     []Port
	Endpoints []Endpoint
}

// Endpoint is a Pod with resolved conditions (an unset ready or serving is true, an unset terminating false).
type Endpoint struct {
	Addr                        netip.Addr
	Node                        string
	Ready, Serving, Terminating bool
	// ForNodes and ForZones are the topology hints: the nodes and zones that should use it.
	ForNodes, ForZones []string
}

// Usable reports whether the endpoint may be used while no ready one is left.
func (e Endpoint) Usable() bool { return e.Serving && e.Terminating }

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
	// Index and MAC identify it. MTU is in octets.
	Index int
	MAC   string
	MTU   int
}

// Pool is an IPAddressPool.
type Pool struct {
	Labels map[string]string
	// Ranges are the last valid ones, or none. Of two overlapping pools the older by Created has the addresses, then
	// the first by name.
	Ranges  []pools.Range
	Created int64
	// ReturnRoutes are the last valid ones, in order of preference. The slice is immutable.
	ReturnRoutes []pools.ReturnRoute
}

// Advertisement selects the addresses to announce by ARP and NDP, and where.
type Advertisement struct {
	// Pools whose addresses are announced, by name or by any of the selectors; both empty for all.
	Pools         []string
	PoolSelectors []pools.Selector
	// Services whose addresses are announced: any of the selectors matches; empty for all.
	Services []pools.Selector
	// Nodes that may answer: any of the selectors matches; empty for all.
	Nodes []pools.Selector
	// Interfaces on which to answer; empty for those whose subnet contains the address.
	Interfaces []string
}

// Matches reports whether the advertisement covers an address of the pool on a node with these labels.
func (a Advertisement) Matches(pool string, poolLabels, node map[string]string) bool {
	return a.Serves(pool, poolLabels) && a.On(node)
}

// Serves reports whether the advertisement covers an address of the pool on some node.
func (a Advertisement) Serves(pool string, poolLabels map[string]string) bool {
	all := len(a.Pools) == 0 && len(a.PoolSelectors) == 0
	return all || slices.Contains(a.Pools, pool) || anyMatches(a.PoolSelectors, poolLabels)
}

// On reports whether the advertisement covers any address on a node with these labels.
func (a Advertisement) On(node map[string]string) bool {
	return len(a.Nodes) == 0 || anyMatches(a.Nodes, node)
}

// Covers reports whether the advertisement selects every Service, given their labels.
func (a Advertisement) Covers(services []map[string]string) bool {
	return len(a.Services) == 0 || !slices.ContainsFunc(services, func(labels map[string]string) bool { return !anyMatches(a.Services, labels) })
}

func anyMatches(selectors []pools.Selector, labels map[string]string) bool {
	return slices.ContainsFunc(selectors, func(s pools.Selector) bool { return s.Matches(labels) })
}
