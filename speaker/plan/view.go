package plan

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// View is what the speaker knows of the cluster. It holds nothing but our own Services: those of type LoadBalancer whose
// address our controller allocated and that kube-proxy leaves alone.
type View struct {
	Services map[pools.ServiceKey]Service
	// Slices are the EndpointSlices of a Service by their name.
	Slices         map[pools.ServiceKey]map[string]Slice
	Nodes          map[string]Node
	VIPs           map[string]VIP
	Advertisements map[string]Advertisement
}

// NewView returns an empty View.
func NewView() *View {
	return &View{
		Services:       map[pools.ServiceKey]Service{},
		Slices:         map[pools.ServiceKey]map[string]Slice{},
		Nodes:          map[string]Node{},
		VIPs:           map[string]VIP{},
		Advertisements: map[string]Advertisement{},
	}
}

// Service is what the data plane needs of a Service.
type Service struct {
	Addresses []Address
	Ports     []Port
	// Local is externalTrafficPolicy: Local; the client's address is kept and only this node's endpoints are used.
	Local bool
	// Affinity is the time-out of session affinity by client address in seconds, 0 for none.
	Affinity uint32
	// Created orders Services that claim the same address and port: the oldest has it.
	Created int64
}

// Address is an allocated address and the pool it came from.
type Address struct {
	IP   netip.Addr
	Pool string
}

// Port is a port of a Service.
type Port struct {
	Name     string
	Protocol ipvs.Protocol
	Port     uint16
}

// Slice is an EndpointSlice: Pods that share the numbers of their named ports.
type Slice struct {
	Ports     []Port
	Endpoints []Endpoint
}

// Endpoint is a Pod, with the conditions resolved (an unset ready or serving is true, an unset terminating false).
type Endpoint struct {
	Addr                        netip.Addr
	Node                        string
	Ready, Serving, Terminating bool
}

// usable tells whether the endpoint may be used while no ready one is left (ipvs.md 3.5, 3.6).
func (e Endpoint) usable() bool { return e.Serving && e.Terminating }

// Node is a node of the cluster.
type Node struct {
	Ready  bool
	Labels map[string]string
}

// VIP is a unit of ownership as the placement controller decided it.
type VIP struct {
	Addresses []netip.Addr
	Services  []pools.ServiceKey
	// Nodes that may answer, in order of preference.
	Nodes []string
	// Holder is the node that the status names.
	Holder string
}

// Advertisement says which addresses are answered for, where.
type Advertisement struct {
	// Pools whose addresses are announced; empty for all.
	Pools []string
	// Nodes that may answer: any of the selectors matches; empty for all.
	Nodes []pools.Selector
	// Interfaces on which to answer; empty for those whose subnet holds the address.
	Interfaces []string
}

// Touched says which parts of a View changed since the last plan. The zero value says that nothing did.
type Touched struct {
	// Services whose object or slices changed, appeared or went.
	Services map[pools.ServiceKey]struct{}
	// Rest is set when a Node, VIP or Advertisement changed.
	Rest bool
	// All is set when everything must be looked at again.
	All bool
}

// Any tells whether anything changed.
func (t Touched) Any() bool { return t.All || t.Rest || len(t.Services) > 0 }
