package plan

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// Options are what the operator decided for the node.
type Options struct {
	// Node is the name of this node.
	Node string
	// ServiceProxy is set where every Service is served here, not only what kube-proxy leaves to us.
	ServiceProxy bool
	// BGP is set where this node speaks BGP.
	BGP bool
	// Scheduler and its Flags for Services that name none; round robin if empty.
	Scheduler string
	Flags     ipvs.Flags
	// NodePortPrimary asks for NodePorts on the Node's own InternalIPs, NodePortCIDRs for those addresses of the node that
	// they hold.
	NodePortPrimary bool
	NodePortCIDRs   []netip.Prefix
	// DetectLocal is how packets of Pods are known.
	DetectLocal DetectLocal
	// ExternalIPs are the CIDRs of external IPs that are served; none if empty.
	ExternalIPs []netip.Prefix
	// APIServers are the addresses at which this process reaches the API server.
	APIServers []netip.Addr
	// Interval is that of the heartbeats between speakers, by which conflicts are decided; 0 means 200 ms.
	Interval time.Duration
	// DrainLimit is how long an endpoint that terminates keeps its connections at most, 0 for as long as it is listed.
	DrainLimit time.Duration
	// ResetAfter is how long after its node became unreachable a TCP endpoint that is left out keeps its connections; 0
	// sets no limit beside DrainLimit.
	ResetAfter time.Duration
	// EndpointChecks has new TCP endpoints checked before they take connections from others.
	EndpointChecks bool
}
