package view

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

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
	// LocalIPv4 and LocalIPv6 are set if only a node with an endpoint of the family can forward its external traffic: the
	// policy is Local, and the addresses are forwarded to endpoints. DirectLocal is set if the policy is Local and all are
	// forwarded directly: any node that can use tunnels can forward.
	LocalIPv4, LocalIPv6, DirectLocal bool
	// IPv4 and IPv6 are its ports with endpoints in each family; of those with the same nodes only the first is listed.
	// Both are empty if only ClusterIPs are served.
	IPv4, IPv6 []PortNodes
}

// Ports returns the ports with endpoints of a family, and whether a node needs an endpoint of each.
func (s Served) Ports(v4 bool) (ports []PortNodes, local bool) {
	if v4 {
		return s.IPv4, s.LocalIPv4
	}
	return s.IPv6, s.LocalIPv6
}

// PortNodes are the nodes with endpoints of a port of a Service, in one family. Endpoints without a node count as on
// the node "".
type PortNodes struct {
	Port string
	// Ready and Usable are the nodes with a ready endpoint, and with a terminating one that still serves.
	Ready, Usable map[string]struct{}
	// Arriving are the nodes whose ready endpoints are all new; with policy Local only.
	Arriving map[string]struct{}
}

// Equal reports whether the nodes of two ports are the same.
func (p PortNodes) Equal(q PortNodes) bool {
	return maps.Equal(p.Ready, q.Ready) && maps.Equal(p.Usable, q.Usable) && maps.Equal(p.Arriving, q.Arriving)
}

// All returns the nodes with an endpoint that is ready or still serves.
func (p PortNodes) All() []string {
	nodes := slices.AppendSeq(slices.Collect(maps.Keys(p.Ready)), maps.Keys(p.Usable))
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// HaveEach reports whether a node has a ready endpoint of each port; with terminating set, one that terminates and
// still serves counts, too.
func HaveEach(ports []PortNodes, node string, terminating bool) bool {
	return !slices.ContainsFunc(ports, func(p PortNodes) bool {
		_, ready := p.Ready[node]
		_, usable := p.Usable[node]
		return !ready && !(terminating && usable)
	})
}

// Serves reports whether a node serves each port of policy Local with its own endpoints. Terminating ones that still
// serve count only if no node has ready ones of each port.
func Serves(ports []PortNodes, node string) bool {
	switch {
	case HaveEach(ports, node, false):
		return true
	case !HaveEach(ports, node, true):
		return false
	}
	for other := range ports[0].Ready {
		if HaveEach(ports, other, false) {
			return false
		}
	}
	return true
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

// Check is a probe of another node, which determines whether to forward connections there. Without a Path it probes a
// new TCP endpoint, and has a result as soon as the endpoint may take connections.
type Check struct {
	Node string
	Addr netip.Addr
	Port uint16
	Path string
}

// Compare orders checks.
func (c Check) Compare(d Check) int {
	return cmp.Or(cmp.Compare(c.Node, d.Node), c.Addr.Compare(d.Addr), cmp.Compare(c.Port, d.Port), cmp.Compare(c.Path, d.Path))
}

// CheckResult is the outcome of a Check.
type CheckResult struct {
	Healthy bool
	Weight  uint32
}

// PoolReturn is the return route of a pool on this node in one family.
type PoolReturn struct {
	Pool string
	IPv4 bool
	// Gateway and Interface are invalid and empty for none, for the reason in Missing.
	Gateway   netip.Addr
	Interface string
	Missing   string
	// InEffect is set while answers leave by it. A plan does not set it.
	InEffect bool
}

// Tunnels are the tunnels of direct forwarding.
type Tunnels struct {
	// Unable is why the node cannot use tunnels, empty if it can.
	Unable string
	// UnableIPv6 is why it cannot use them for IPv6, empty if it can or if Unable is set.
	UnableIPv6 string
	// MTU is in octets, 0 without tunnels.
	MTU int
	// VirtualServers is the number that is forwarded directly.
	VirtualServers int
}
