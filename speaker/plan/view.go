package plan

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// View is what the speaker knows of the cluster and of its node. Of Services it holds only those that are served or
// announced here (docs/design/data-plane.md, "Which Services are served").
type View struct {
	Services map[pools.ServiceKey]Service
	// Slices are the EndpointSlices of a Service by their name.
	Slices         map[pools.ServiceKey]map[string]Slice
	Nodes          map[string]Node
	VIPs           map[string]VIP
	Advertisements map[string]Advertisement
	// BGPPeers and BGPAdvertisements by name.
	BGPPeers          map[string]BGPPeer
	BGPAdvertisements map[string]BGPAdvertisement
	// Pools by name.
	Pools map[string]Pool
	// Checks are the results of the probes that were asked for.
	Checks map[Check]CheckResult
	// Host are the addresses of this node's interfaces that are not virtual, Gateways those by way of which it sends packets.
	Host, Gateways map[netip.Addr]struct{}
	// Links are this node's interfaces on which addresses can be answered for, by name.
	Links map[string]Link
	// Members are the other nodes as they are heard, and whether this one is.
	Members Members
	// Unable are the addresses that this node cannot answer for as it is, with the reason; the loop finds them.
	Unable map[netip.Addr]Reason
	// Leaving is set when this process is about to end.
	Leaving bool
	// OtherProxy are the Services that another proxy serves on this node.
	OtherProxy map[pools.ServiceKey]struct{}
	// Stale is set while all that the API server tells is from a snapshot of an earlier time. The plan is the same; what of the node it does
	// not name may be newer.
	Stale bool
	// ServiceNetworks are the ranges of ClusterIPs by the name of their ServiceCIDR.
	ServiceNetworks map[string][]netip.Prefix
	// Unreachable are the nodes whose speaker and whose kernel are silent to this node, by name, and since when.
	// Endpoints there take no new connections while others can. With the zero time no connection to them ends.
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

// Service is what the data plane needs of a Service.
type Service struct {
	Addresses []Address
	Ports     []Port
	// Labels are those of a load balancer, for advertisements to select.
	Labels map[string]string
	// Local is externalTrafficPolicy: Local; the client's address is kept and only this node's endpoints are used.
	Local bool
	// InternalLocal is internalTrafficPolicy: Local; ClusterIPs lead to this node's endpoints only.
	InternalLocal bool
	// Families are those in which the Service has a ClusterIP; it is served in no other (ipvs.md 1.1.2).
	Families Families
	// NodePorts is set if the ports' NodePorts and the HealthCheckNodePort are served here: the Service is wholly ours.
	NodePorts bool
	// HealthCheckNodePort tells load balancers which nodes have endpoints, 0 for none.
	HealthCheckNodePort uint16
	// Restricted is set if any source range was given, readable or not; Sources are those that may connect then.
	Restricted bool
	Sources    []netip.Prefix
	// Affinity is the time-out of session affinity by client address in seconds, 0 for none.
	Affinity uint32
	// Scheduler and its Flags, if the Service names one.
	Scheduler string
	Flags     ipvs.Flags
	// Forwarding is how a LoadBalancer address leads to a Pod.
	Forwarding Forwarding
	// Created orders Services that claim the same address and port: the oldest has it.
	Created int64
}

// needsLocalEndpoint tells whether only a node with an endpoint can forward what arrives from outside.
func (s Service) needsLocalEndpoint() bool { return s.Local && s.Forwarding == ToPod }

// Families of addresses; the zero value is both.
type Families uint8

// One family only.
const (
	OnlyIPv4 Families = iota + 1
	OnlyIPv6
)

// has tells whether the address is of one of the families.
func (f Families) has(a netip.Addr) bool {
	return f == 0 || a.Is4() == (f == OnlyIPv4)
}

// Forwarding is how a LoadBalancer address leads to a Pod.
type Forwarding uint8

const (
	// ToPod sends straight to the endpoints.
	ToPod Forwarding = iota
	// ToNodePort sends to the nodes' NodePorts, from where each node goes on to a Pod.
	ToNodePort
)

// Pool is an IPAddressPool.
type Pool struct {
	Labels map[string]string
	// Ranges are none if they cannot be read. Of two pools that overlap the older by Created has the addresses, then the first by name.
	Ranges  []pools.Range
	Created int64
}

// Address is an address of a Service. == compares it.
type Address struct {
	IP netip.Addr
	// Pool is the one that our controller recorded when it gave the address, empty for none. The plan goes by the pool that has the address
	// now, if one has.
	Pool string
	Kind AddressKind
	// AnnounceOnly is set if kube-proxy forwards the address (ipMode VIP beside kube-proxy): it is answered for and no more.
	AnnounceOnly bool
}

// AddressKind says what an address of a Service is, and so which policies hold for it.
type AddressKind uint8

const (
	// LoadBalancer: of status.loadBalancer.ingress, from our controller.
	LoadBalancer AddressKind = iota
	// External: of spec.externalIPs.
	External
	// ClusterIP: of spec.clusterIPs.
	ClusterIP
	// Foreign: of status.loadBalancer.ingress, from another controller.
	Foreign
)

// Port is a port of a Service or of an EndpointSlice.
type Port struct {
	Name     string
	Protocol ipvs.Protocol
	Port     uint16
	// NodePort of a Service's port, 0 for none.
	NodePort uint16
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
	// ForNodes and ForZones are the topology hints: who ought to use it.
	ForNodes, ForZones []string
}

// usable tells whether the endpoint may be used while no ready one is left (ipvs.md 3.5, 3.6).
func (e Endpoint) usable() bool { return e.Serving && e.Terminating }

// Node is a node of the cluster.
type Node struct {
	Labels map[string]string
	// Addresses are the InternalIPs, at most one of each family that counts: the first.
	Addresses []netip.Addr
	// Reached are all InternalIPs and ExternalIPs.
	Reached  []netip.Addr
	PodCIDRs []netip.Prefix
	// Leaving is set if the Node is being deleted or is to be by the cluster's autoscaler (ipvs.md 5.2.3).
	Leaving bool
	// Stopping is set if the node is likely to be stopped soon: it is cordoned, shuts down, or is out of service. It decides nothing but what the end
	// of a process means.
	Stopping bool
	// Excluded is set while external load balancers are to leave the node out (ipvs.md 7.2.3).
	Excluded bool
	// NetworkUnavailable is set while the node's network is not set up.
	NetworkUnavailable bool
	// Ready is what the API server says of it. It decides nothing but who may write a status.
	Ready bool
}

// Zone returns the zone of the node, empty if it is in none.
func (n Node) Zone() string { return n.Labels[labelZone] }

// Goes tells whether a process of ours that ends now is not expected back soon.
func (n Node) Goes() bool { return n.Stopping || n.Leaving || n.Excluded }

// labelZone is a label of Nodes (k8s.io/api/core/v1).
const labelZone = "topology.kubernetes.io/zone"

// VIP is a unit of ownership as the placement controller decided it.
type VIP struct {
	Addresses []netip.Addr
	Services  []pools.ServiceKey
	// Nodes that may answer, in order of preference, as of Generation.
	Nodes      []string
	Generation int64
	// Holder is the node that the status names. Contested is set while the status says that another node, which does not hear that one,
	// answers as well.
	Holder    string
	Contested bool
}

// Advertisement says which addresses are answered for, where.
type Advertisement struct {
	// Pools whose addresses are announced, by name or by any of the selectors; both empty for all.
	Pools         []string
	PoolSelectors []pools.Selector
	// Services whose addresses are announced: any of the selectors matches; empty for all.
	Services []pools.Selector
	// Nodes that may answer: any of the selectors matches; empty for all.
	Nodes []pools.Selector
	// Interfaces on which to answer; empty for those whose subnet holds the address.
	Interfaces []string
}

// Touched says which parts of a View changed since the last plan. The zero value says that nothing did.
type Touched struct {
	// Services whose object or slices changed, appeared or went. Slices are those of which the slices did, also of one that is not in the View.
	Services, Slices map[pools.ServiceKey]struct{}
	Nodes            map[string]struct{}
	VIPs             map[string]struct{}
	// Checks whose result changed.
	Checks map[Check]struct{}
	// Advertisements is set when one of them changed, or the labels of a pool did.
	Advertisements bool
	// BGPPeers that changed, appeared or went. BGPAdvertisements is set when one of them changed, or the labels of a pool did.
	BGPPeers          map[string]struct{}
	BGPAdvertisements bool
	// Pools is set when the ranges of a pool changed.
	Pools bool
	// Host is set when an address of this node's interfaces came or went, Gateways when one of its gateways did.
	Host, Gateways bool
	// Links that came, went or have other subnets.
	Links map[string]struct{}
	// Members are the nodes that are heard otherwise than before, Claims the VirtualIPs of which a node says something else.
	Members map[string]struct{}
	Claims  map[VIPID]struct{}
	// Unable are the addresses of which it changed.
	Unable map[netip.Addr]struct{}
	// Unreachable are the nodes whose entry came, went or has another time.
	Unreachable map[string]struct{}
	// ServiceNetworks is set when a ServiceCIDR changed, or OtherProxy did.
	ServiceNetworks bool
	// Stale is set when it changed.
	Stale bool
	// All is set when everything must be looked at again.
	All bool
}

// Any tells whether anything changed.
func (t Touched) Any() bool {
	return t.All || t.Stale || t.Advertisements || t.BGPAdvertisements || t.Pools || t.Host || t.Gateways || t.ServiceNetworks ||
		len(t.BGPPeers)+len(t.Services)+len(t.Slices)+len(t.Nodes)+len(t.VIPs)+len(t.Checks) > 0 ||
		len(t.Links)+len(t.Members)+len(t.Claims)+len(t.Unable)+len(t.Unreachable) > 0
}
