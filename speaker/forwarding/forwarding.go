package forwarding

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// Forwarding is the desired state of the data plane of a node: what it does not contain must not exist.
type Forwarding struct {
	Table ipvs.Table
	// ClusterInternal are virtual servers for clients on this node, Pods and processes, instead of the entry of Table.
	ClusterInternal ipvs.Table
	// Direct is the first tier of the virtual servers that have one. SlotsDigest is the sum of the digests of their slots:
	// two nodes with equal slots have the same, whatever the indexes of the nodes.
	Direct      ipvs.Direct
	SlotsDigest uint64
	// ServicePorts are the Service ports of the virtual servers of Table.
	ServicePorts map[ipvs.Key]ServicePort
	// Keys are the keys of Table by address.
	Keys   map[netip.Addr]map[ipvs.Key]struct{}
	Filter ipvs.Filter
	// Local are the addresses that are local to the node.
	Local map[netip.Addr]struct{}
	// HealthPorts are the healthCheckNodePorts to serve.
	HealthPorts map[pools.ServiceKey]HealthPort
	// Checks are the probes of other nodes and of new endpoints.
	Checks map[view.Check]struct{}
	// Services gives the reasons.
	Services map[pools.ServiceKey]view.Reason
	// Refused are the addresses that no Service may have, of the Services that have any.
	Refused map[pools.ServiceKey]map[netip.Addr]pools.Refusal
	// Fallbacks are the Services that are to be forwarded directly and are not.
	Fallbacks map[pools.ServiceKey]view.Fallback
	// Gateways are those of this node outside the addresses and Pod networks of Nodes, sorted. The slice is immutable.
	Gateways []netip.Addr
	// ReturnRoutes are the routes of answers, PoolReturns those of each pool, sorted. The slices are immutable.
	ReturnRoutes []ipvs.ReturnRoute
	PoolReturns  []view.PoolReturn
	// Unreachable counts the endpoints on unreachable nodes, by node, for nodes that have any.
	Unreachable map[string]view.UnreachableEndpoints
}

// NewForwarding returns a Forwarding of nothing.
func NewForwarding() Forwarding {
	return Forwarding{
		Table:           ipvs.Table{},
		ClusterInternal: ipvs.Table{},
		Direct:          ipvs.Direct{Virtuals: map[ipvs.Key]ipvs.Directed{}},
		ServicePorts:    map[ipvs.Key]ServicePort{},
		Keys:            map[netip.Addr]map[ipvs.Key]struct{}{},
		Filter:          ipvs.Filter{},
		Local:           map[netip.Addr]struct{}{},
		HealthPorts:     map[pools.ServiceKey]HealthPort{},
		Checks:          map[view.Check]struct{}{},
		Services:        map[pools.ServiceKey]view.Reason{},
		Refused:         map[pools.ServiceKey]map[netip.Addr]pools.Refusal{},
		Fallbacks:       map[pools.ServiceKey]view.Fallback{},
		Unreachable:     map[string]view.UnreachableEndpoints{},
	}
}

// ChangedForwarding names the parts of Forwarding that may differ from the last plan.
type ChangedForwarding struct {
	// Keys of Table, ClusterInternal, Direct and ServicePorts.
	Keys     map[ipvs.Key]struct{}
	Elements map[ipvs.Element]struct{}
	// DirectNodes is set if the addresses of Direct changed.
	DirectNodes bool
	// ReturnRoutes is set if they or PoolReturns changed.
	ReturnRoutes bool
	// Local are the addresses of Local.
	Local map[netip.Addr]struct{}
	// Services of Services, Refused, Fallbacks and HealthPorts.
	Services map[pools.ServiceKey]struct{}
	Checks   map[view.Check]struct{}
	// Unreachable are the nodes of Unreachable.
	Unreachable map[string]struct{}
}

func newChangedForwarding() ChangedForwarding {
	return ChangedForwarding{
		Keys:        map[ipvs.Key]struct{}{},
		Elements:    map[ipvs.Element]struct{}{},
		Local:       map[netip.Addr]struct{}{},
		Services:    map[pools.ServiceKey]struct{}{},
		Checks:      map[view.Check]struct{}{},
		Unreachable: map[string]struct{}{},
	}
}

// ServicePort is a port of a Service. The port of its virtual server is another one if that is a NodePort.
type ServicePort struct {
	Service pools.ServiceKey
	Port    uint16
}

// HealthPort is a healthCheckNodePort to serve.
type HealthPort struct {
	Port    uint16
	Service pools.ServiceKey
	// IPv4Endpoints and IPv6Endpoints are the numbers of ready endpoints on this node, 0 for a family in which another
	// node serves a port that this one does not.
	IPv4Endpoints, IPv6Endpoints int
	// Addrs are the node addresses to serve it on: those of NodePorts.
	Addrs AddrSet
}
