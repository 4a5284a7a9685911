package plan

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// Options are the operator's settings for the node.
type Options struct {
	// Node is the name of this node.
	Node string
	// ServiceProxy is set if IronLB serves every Service here, not only those that kube-proxy leaves to it.
	ServiceProxy bool
	// BGP is set if this node runs BGP.
	BGP bool
	// Scheduler and its Flags for Services without their own; round robin if empty.
	Scheduler string
	Flags     ipvs.Flags
	// NodePortPrimary enables NodePorts on the Node's InternalIPs, NodePortCIDRs on the node's addresses within these
	// ranges.
	NodePortPrimary bool
	NodePortCIDRs   []netip.Prefix
	// DetectLocal is how Pod packets are recognized.
	DetectLocal DetectLocal
	// ExternalIPs are the CIDRs of external IPs to serve; none if empty.
	ExternalIPs []netip.Prefix
	// APIServers are the API server addresses that this process uses.
	APIServers []netip.Addr
	// Interval is the heartbeat interval of the speakers, which sets the timing of conflict resolution; 0 means 200 ms.
	Interval time.Duration
	// DrainLimit is the maximum time for which a terminating endpoint keeps its connections, 0 for as long as it is
	// listed.
	DrainLimit time.Duration
	// ResetAfter is how long after its node became unreachable an excluded TCP endpoint keeps its connections; 0 sets
	// no limit besides DrainLimit.
	ResetAfter time.Duration
	// EndpointChecks enables checks of new TCP endpoints before they take connections from others.
	EndpointChecks bool
}
