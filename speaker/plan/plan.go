package plan

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Desired is the full desired state of a node: what it does not contain must not exist.
type Desired struct {
	Table ipvs.Table
	// ClusterInternal are virtual servers for clients on this node, Pods and processes, instead of the entry of Table.
	ClusterInternal ipvs.Table
	// ServicePorts are the Service ports of the virtual servers of Table.
	ServicePorts map[ipvs.Key]ServicePort
	// Keys are the keys of Table by address.
	Keys   map[netip.Addr]map[ipvs.Key]struct{}
	Filter ipvs.Filter
	// Local are the addresses that are local to the node.
	Local map[netip.Addr]struct{}
	ownership.Owners
	// HealthPorts are the healthCheckNodePorts to serve.
	HealthPorts map[pools.ServiceKey]HealthPort
	// Checks are the probes of other nodes and of new endpoints.
	Checks map[view.Check]struct{}
	// Services gives the reasons.
	Services map[pools.ServiceKey]view.Reason
	// Refused are the addresses that no Service may have, of the Services that have any.
	Refused map[pools.ServiceKey]map[netip.Addr]pools.Refusal
	// Gateways are those of this node outside the addresses and Pod networks of Nodes, sorted. The slice is immutable.
	Gateways []netip.Addr
	routes.Routing
	// Unreachable counts the endpoints on unreachable nodes, by node, for nodes that have any.
	Unreachable map[string]view.UnreachableEndpoints
}

func newDesired() *Desired {
	return &Desired{
		Table:           ipvs.Table{},
		Owners:          ownership.NewOwners(),
		ClusterInternal: ipvs.Table{},
		ServicePorts:    map[ipvs.Key]ServicePort{},
		Keys:            map[netip.Addr]map[ipvs.Key]struct{}{},
		Filter:          ipvs.Filter{},
		Local:           map[netip.Addr]struct{}{},
		HealthPorts:     map[pools.ServiceKey]HealthPort{},
		Checks:          map[view.Check]struct{}{},
		Services:        map[pools.ServiceKey]view.Reason{},
		Refused:         map[pools.ServiceKey]map[netip.Addr]pools.Refusal{},
		Unreachable:     map[string]view.UnreachableEndpoints{},
		Routing:         routes.NewRouting(),
	}
}

// Changed names the parts of Desired that may differ from the last call of Plan; everything else is unchanged.
type Changed struct {
	// Keys of Table, ClusterInternal and ServicePorts.
	Keys     map[ipvs.Key]struct{}
	Elements map[ipvs.Element]struct{}
	// Addrs of Local, Announce and Routed.
	Addrs map[netip.Addr]struct{}
	ownership.ChangedOwners
	// Services of Services, Refused and HealthPorts.
	Services map[pools.ServiceKey]struct{}
	Checks   map[view.Check]struct{}
	// Unreachable are the nodes of Unreachable.
	Unreachable map[string]struct{}
	routes.ChangedRouting
}

func newChanged() *Changed {
	return &Changed{
		Keys:     map[ipvs.Key]struct{}{},
		Elements: map[ipvs.Element]struct{}{},
		Addrs:    map[netip.Addr]struct{}{},
		Services: map[pools.ServiceKey]struct{}{},
		Checks:   map[view.Check]struct{}{},

		Unreachable: map[string]struct{}{},
	}
}

// ServicePort is a port of a Service. The port of its virtual server is another one if that is a NodePort.
type ServicePort struct {
	Service pools.ServiceKey
	Port    uint16
}
