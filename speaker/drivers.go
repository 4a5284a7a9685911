package speaker

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/advertise"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// Source provides the observed state of the cluster.
type Source interface {
	// Observe returns the View and what changed in it since the last call. ok is false until every informer has synced
	// once. The caller owns the View until it calls Observe again.
	Observe() (v *view.View, touched view.Touched, ok bool)
}

// Node holds the drivers of the node's state.
type Node struct {
	dataplane.Drivers
	// The drivers below may be nil: their part of the plan is then skipped.
	Retainer   Retainer
	Blackholes advertise.Blackholes
}

// Retainer makes the kernel answer ARP and NDP while no speaker runs.
type Retainer interface {
	// Retain makes the kernel answer for owned addresses on their interfaces until Release or the end of the lifetime,
	// even if the process dies. It is all or nothing.
	Retain(addrs map[netip.Addr][]string, lifetime time.Duration) error
	// Retained returns the retained addresses, including those of an earlier process.
	Retained() (map[netip.Addr]struct{}, error)
	// Release ends the retention. It also succeeds for other addresses.
	Release(addrs map[netip.Addr]struct{}) error
}

// Detector reports the liveness and the claims of the other members, without the API server. A change triggers the
// loop.
type Detector interface {
	// Observe returns the observed members, the nodes whose liveness changed since the last call, and the VirtualIPs
	// with a changed claim. The Members are never modified afterwards.
	Observe() (members view.Members, nodes map[string]struct{}, claims map[view.VIPID]struct{})
	// Publish publishes the complete state of this node to the other members. It does not block.
	Publish(view.LocalState)
	// CompareSlots publishes the digest of this node's slots, and returns the digests of the members that should have the
	// same and do not, by name. It does not block.
	CompareSlots(digest uint64) map[string]uint64
	// SetSegments sets the interfaces on which to receive other members.
	SetSegments(interfaces []string)
	// SetPeers sets the nodes of the cluster, with their addresses on the node network.
	SetPeers(map[string][]netip.Addr)
	// Retain announces that this process is about to end, and for how long the kernel answers for its last claims.
	Retain(time.Duration)
	// Settled reports that every address retained by an earlier process has been decided on.
	Settled()
}

// Reach finds the nodes that this one cannot reach. It triggers the loop when State returns something new.
type Reach interface {
	// SetNodes sets the other nodes, with their addresses on the node network.
	SetNodes(map[string][]netip.Addr)
	// SetGateways sets the gateways of this node.
	SetGateways([]netip.Addr)
	// State returns what was found. It is never modified afterwards.
	State() view.Reachability
}

// Progress receives the progress of the node, for health checks of the service proxy.
type Progress interface {
	// Applied records that every change before this time is applied.
	Applied(before time.Time)
	// SetNode records whether the Node may receive traffic.
	SetNode(eligible bool)
}

// Traffic exports the counters of virtual servers as metrics.
type Traffic interface {
	// Update records the changed virtual servers of the plan. It keeps nothing of that.
	Update(desired *plan.Desired, changed map[ipvs.Key]struct{})
}
