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
	// endpoints take no new connections while others can. With the zero time no connection to them ends.
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
