package view

import (
	"cmp"
	"net/netip"

	"github.com/ironlb/ironlb/pools"
)

// DataPlane is the planned data plane of a node, as far as the announcements depend on it.
type DataPlane interface {
	// Service returns a Service as it is served, the zero value for one that is not.
	Service(pools.ServiceKey) Served
	// IsLocal reports whether an address is local.
	IsLocal(netip.Addr) bool
	// Changed returns the Services and local addresses that may differ from the last plan.
	Changed() (services map[pools.ServiceKey]struct{}, addrs map[netip.Addr]struct{})
}

// Served is a Service as the data plane of this node serves it.
type Served struct {
	// Addresses are those that may be served or announced here, each with its present pool.
	Addresses []Address
	// NeedsLocalEndpoint is set if only a node with an endpoint can forward external traffic: the policy is Local, and
	// the Service, or one of its addresses, is forwarded to endpoints. DirectLocal is set if the policy is Local and all
	// are forwarded directly: any node that can use tunnels can forward.
	NeedsLocalEndpoint, DirectLocal bool
	// Ready and Usable are the nodes with a ready endpoint, and with a terminating one that still serves.
	Ready, Usable map[string]struct{}
	// Arriving are the nodes whose ready endpoints of a family are all new at one of the ports; with policy Local only.
	Arriving map[NodeFamily]struct{}
}

// NodeFamily is a node in one address family.
type NodeFamily struct {
	Node string
	IPv4 bool
}

// Fallback is why a Service that is to be forwarded directly is forwarded to endpoints instead.
type Fallback struct {
	Reason Reason
	// Node is the node with NodeWithoutTunnel and NoIPv6Tunnel, Endpoint the endpoint with EndpointWithoutNode.
	Node     string
	Endpoint netip.Addr
}

// Compare orders fallbacks.
func (f Fallback) Compare(g Fallback) int {
	return cmp.Or(cmp.Compare(f.Reason, g.Reason), cmp.Compare(f.Node, g.Node), f.Endpoint.Compare(g.Endpoint))
}
