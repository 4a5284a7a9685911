package view

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
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
