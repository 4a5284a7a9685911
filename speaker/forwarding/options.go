package forwarding

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// Options are the operator's settings for the forwarding.
type Options struct {
	// ServiceProxy is set if IronLB serves every Service here, not only those that kube-proxy leaves to it.
	ServiceProxy bool
	// Scheduler and its Flags for Services without their own; round robin if empty.
	Scheduler string
	Flags     ipvs.Flags
	// NodePortCIDRs enables NodePorts on the node's addresses within these ranges; on the Node's InternalIPs if empty.
	NodePortCIDRs []netip.Prefix
	// DetectLocal is how Pod packets are recognized.
	DetectLocal DetectLocal
	// ExternalIPs are the CIDRs of external IPs to serve; none if empty.
	ExternalIPs []netip.Prefix
	// APIServers are the API server addresses that this process uses.
	APIServers []netip.Addr
	// DrainLimit is the maximum time for which a terminating endpoint keeps its connections, 0 for as long as it is
	// listed.
	DrainLimit time.Duration
	// ResetAfter is how long after its node became unreachable an excluded TCP endpoint keeps its connections; 0 sets
	// no limit besides DrainLimit.
	ResetAfter time.Duration
	// EndpointChecks enables checks of new TCP endpoints before they take connections from others.
	EndpointChecks bool
}

// resetAt returns when to end connections to a node that is unreachable since then, zero for never.
func (o Options) resetAt(since time.Time) time.Time {
	if o.ResetAfter == 0 || since.IsZero() {
		return time.Time{}
	}
	return since.Add(o.ResetAfter)
}
