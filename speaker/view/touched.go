package view

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/pools"
)

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
