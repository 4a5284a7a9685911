// Package view has the values that the parts of the speaker share.
//
// A View is what one node observes: the API objects, its own interfaces and addresses, the results of probes, the
// other members with their claims, and which nodes are unreachable. Touched names what changed in it. speaker/kube, the
// membership and the drivers fill a View; speaker/forwarding, speaker/ownership and speaker/routes compute from it.
//
// A Reason is why a node does or does not do something. Claims are what the members exchange. DataPlane and Served are
// what the planned data plane makes of a Service, as far as announcements depend on it.
//
// The package has values only: no decision, no I/O, no clock.
package view

import (
	"net/netip"
	"time"

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
	// NotDirect is why this node cannot forward through tunnels; empty if it can. DirectIPv4Only is set if it can only
	// forward IPv4.
	NotDirect      Reason
	DirectIPv4Only bool
	// OtherProxy are the Services that another proxy serves on this node.
	OtherProxy map[pools.ServiceKey]struct{}
	// ServiceNetworks are the ranges of ClusterIPs by the name of their ServiceCIDR.
	ServiceNetworks map[string][]netip.Prefix
	// Unreachable are the nodes whose speaker and kernel do not answer this node, by name, and since when. Their
	// endpoints take no new connections while others can.
	Unreachable map[string]time.Time
}

// New returns an empty View.
func New() *View {
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
	// Pools is set if the ranges of a pool changed, ReturnRoutes if its return routes did.
	Pools, ReturnRoutes bool
	// Host is set if an address of this node's interfaces was added or removed, Gateways if one of its gateways was.
	Host, Gateways bool
	// Links that were added, removed or have other subnets.
	Links map[string]struct{}
	// Members are the nodes with changed liveness, Claims the VirtualIPs with a changed claim.
	Members map[string]struct{}
	Claims  map[VIPID]struct{}
	// NotDirect is set if it or DirectIPv4Only changed.
	NotDirect bool
	// Unable are the addresses whose entry changed.
	Unable map[netip.Addr]struct{}
	// Unreachable are the nodes whose entry was added, removed or has another time.
	Unreachable map[string]struct{}
	// ServiceNetworks is set if a ServiceCIDR or OtherProxy changed.
	ServiceNetworks bool
	// Since are the times of the changes in the cluster that changed these slices, as far as known.
	Since []time.Time
	// All is set if everything must be planned again.
	All bool
}

// Any reports whether anything changed.
func (t Touched) Any() bool {
	return t.All || t.NotDirect || t.Advertisements || t.BGPAdvertisements || t.Pools || t.ReturnRoutes || t.Host || t.Gateways || t.ServiceNetworks ||
		len(t.BGPPeers)+len(t.Services)+len(t.Slices)+len(t.Nodes)+len(t.VIPs)+len(t.Checks) > 0 ||
		len(t.Links)+len(t.Members)+len(t.Claims)+len(t.Unable)+len(t.Unreachable) > 0
}
