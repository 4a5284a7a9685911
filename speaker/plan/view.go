package plan

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// View is the observed state of the cluster and of this node. It contains only Services that are served or announced
// here (docs/design/data-plane.md, "Which Services are served").
type View struct {
	Services map[pools.ServiceKey]Service
	// Slices are the EndpointSlices of a Service by name.
	Slices         map[pools.ServiceKey]map[string]Slice
	Nodes          map[string]Node
	VIPs           map[string]VIP
	Advertisements map[string]Advertisement
	// BGPPeers and BGPAdvertisements by name.
	BGPPeers          map[string]BGPPeer
	BGPAdvertisements map[string]BGPAdvertisement
	// Pools by name.
	Pools map[string]Pool
	// Checks are the results of the requested probes.
	Checks map[Check]CheckResult
	// Host are the non-virtual addresses of this node's interfaces, Gateways the gateways of this node.
	Host, Gateways map[netip.Addr]struct{}
	// Links are this node's interfaces on which addresses can be announced, by name.
	Links map[string]Link
	// Members are the liveness and claims of the other members, and the liveness state of this node.
	Members Members
	// Unable are the addresses that this node cannot answer for, with the reason; the loop determines them.
	Unable map[netip.Addr]Reason
	// Leaving is set when this process is about to end.
	Leaving bool
	// OtherProxy are the Services that another proxy serves on this node.
	OtherProxy map[pools.ServiceKey]struct{}
	// FromSnapshot is set while the cluster state comes from the on-disk snapshot. The plan is the same; state on the node
	// that it does not contain may be newer.
	FromSnapshot bool
	// ServiceNetworks are the ranges of ClusterIPs by the name of their ServiceCIDR.
	ServiceNetworks map[string][]netip.Prefix
	// Unreachable are the nodes whose speaker and kernel do not answer this node, by name, and since when. Their
	// endpoints take no new connections while others can. With the zero time no connection to them ends.
	Unreachable map[string]time.Time
}

// NewView returns an empty View.
func NewView() *View {
	return &View{
		Services:          map[pools.ServiceKey]Service{},
		Slices:            map[pools.ServiceKey]map[string]Slice{},
		Nodes:             map[string]Node{},
		VIPs:              map[string]VIP{},
		Advertisements:    map[string]Advertisement{},
		BGPPeers:          map[string]BGPPeer{},
		BGPAdvertisements: map[string]BGPAdvertisement{},
		Pools:             map[string]Pool{},
		Checks:            map[Check]CheckResult{},
		Host:              map[netip.Addr]struct{}{},
		Gateways:          map[netip.Addr]struct{}{},
		Links:             map[string]Link{},
		Unable:            map[netip.Addr]Reason{},
		OtherProxy:        map[pools.ServiceKey]struct{}{},
		ServiceNetworks:   map[string][]netip.Prefix{},
		Unreachable:       map[string]time.Time{},
	}
}

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
	// Families are those in which the Service has a ClusterIP; it is served in no other (ipvs.md 1.1.2).
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
	// Forwarding is how a LoadBalancer address is forwarded to a Pod.
	Forwarding Forwarding
	// Created orders Services that claim the same address and port: the oldest wins.
	Created int64
}

// needsLocalEndpoint reports whether only a node with an endpoint can forward external traffic.
func (s Service) needsLocalEndpoint() bool { return s.Local && s.Forwarding == ToPod }

// Families of addresses; the zero value is both.
type Families uint8

// One family only.
const (
	OnlyIPv4 Families = iota + 1
	OnlyIPv6
)

// has reports whether the address is of one of the families.
func (f Families) has(a netip.Addr) bool {
	return f == 0 || a.Is4() == (f == OnlyIPv4)
}

// Forwarding is how a LoadBalancer address is forwarded to a Pod.
type Forwarding uint8

const (
	// ToPod forwards directly to the endpoints.
	ToPod Forwarding = iota
	// ToNodePort forwards to the NodePorts of the nodes; each node forwards to a Pod.
	ToNodePort
)

// Pool is an IPAddressPool.
type Pool struct {
	Labels map[string]string
	// Ranges are none if they are invalid. Of two overlapping pools the older by Created has the addresses, then the
	// first by name.
	Ranges  []pools.Range
	Created int64
}

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

// usable reports whether the endpoint may be used while no ready one is left (ipvs.md 3.5, 3.6).
func (e Endpoint) usable() bool { return e.Serving && e.Terminating }

// Node is a node of the cluster.
type Node struct {
	Labels map[string]string
	// Addresses are the InternalIPs; only the first of each family counts.
	Addresses []netip.Addr
	// Reached are all InternalIPs and ExternalIPs.
	Reached  []netip.Addr
	PodCIDRs []netip.Prefix
	// BeingDeleted is set if the Node is being deleted or marked for removal by the cluster autoscaler (ipvs.md 5.2.3).
	BeingDeleted bool
	// Stopping is set if the node is likely to stop soon: it is cordoned, shutting down, or out of service. It only
	// affects whether an ending process is expected back.
	Stopping bool
	// Excluded is set while external load balancers must leave the node out (ipvs.md 7.2.3).
	Excluded bool
	// NetworkUnavailable is set while the node's network is not set up.
	NetworkUnavailable bool
	// Ready is the Ready condition. It affects which node writes a status and how asymmetric links are resolved.
	Ready bool
}

// Zone returns the zone of the node, empty for none.
func (n Node) Zone() string { return n.Labels[labelZone] }

// Decommissioning reports whether the node is being decommissioned, so that an ending process is not expected back
// soon.
func (n Node) Decommissioning() bool { return n.Stopping || n.BeingDeleted || n.Excluded }

// labelZone is a label of Nodes (k8s.io/api/core/v1).
const labelZone = "topology.kubernetes.io/zone"

// VIP is a unit of ownership as decided by the placement controller.
type VIP struct {
	Addresses []netip.Addr
	Services  []pools.ServiceKey
	// Nodes that may answer, in order of preference, as of Generation.
	Nodes      []string
	Generation int64
	// ReportedOwner is the node that the status names. Contested is set while the status reports another owner that
	// does not receive ReportedOwner.
	ReportedOwner string
	Contested     bool
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

// Touched names the parts of a View that changed since the last plan. The zero value names nothing.
type Touched struct {
	// Services whose object or slices changed, appeared or were deleted. Slices are those with changed slices,
	// including Services outside the View.
	Services, Slices map[pools.ServiceKey]struct{}
	Nodes            map[string]struct{}
	VIPs             map[string]struct{}
	// Checks whose result changed.
	Checks map[Check]struct{}
	// Advertisements is set if one of them or the labels of a pool changed.
	Advertisements bool
	// BGPPeers that changed, appeared or were deleted. BGPAdvertisements is set if one of them or the labels of a pool
	// changed.
	BGPPeers          map[string]struct{}
	BGPAdvertisements bool
	// Pools is set if the ranges of a pool changed.
	Pools bool
	// Host is set if an address of this node's interfaces was added or removed, Gateways if one of its gateways was.
	Host, Gateways bool
	// Links that were added, removed or have other subnets.
	Links map[string]struct{}
	// Members are the nodes with changed liveness, Claims the VirtualIPs with a changed claim.
	Members map[string]struct{}
	Claims  map[VIPID]struct{}
	// Unable are the addresses whose entry changed.
	Unable map[netip.Addr]struct{}
	// Unreachable are the nodes whose entry was added, removed or has another time.
	Unreachable map[string]struct{}
	// ServiceNetworks is set if a ServiceCIDR or OtherProxy changed.
	ServiceNetworks bool
	// FromSnapshot is set if it changed.
	FromSnapshot bool
	// All is set if everything must be planned again.
	All bool
}

// Any reports whether anything changed.
func (t Touched) Any() bool {
	return t.All || t.FromSnapshot || t.Advertisements || t.BGPAdvertisements || t.Pools || t.Host || t.Gateways || t.ServiceNetworks ||
		len(t.BGPPeers)+len(t.Services)+len(t.Slices)+len(t.Nodes)+len(t.VIPs)+len(t.Checks) > 0 ||
		len(t.Links)+len(t.Members)+len(t.Claims)+len(t.Unable)+len(t.Unreachable) > 0
}
