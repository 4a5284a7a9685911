package forwarding

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// servicePlan is the part of the plan that one Service needs on this node.
type servicePlan struct {
	view.Served
	// refused are the addresses that may not be served or announced here.
	refused  map[netip.Addr]pools.Refusal
	virtuals map[ipvs.Key]*virtual
	// unserved is why there are no virtual servers, if there are none.
	unserved view.Reason
	// lists are the lists of real servers that virtual servers share, with the draining ones.
	lists map[ListKey]list
	// since is when the ready TCP endpoints of each port became ready, zero for those that are not new. Its keys have
	// Local unset.
	since map[ListKey]map[netip.AddrPort]time.Time
	// directed are the first tiers of its virtual servers. fallback is why there are none although there should be.
	directed map[ipvs.Key]directed
	fallback view.Fallback
	// silent are the nodes of its endpoints whose speakers are not received.
	silent map[string]silence
	// health is the healthCheckNodePort to serve, nil for none.
	health *HealthPort
	// elements are filter elements that belong to no single virtual server.
	elements []ipvs.Element
	// checks are the probes of nodes and of new endpoints that it needs.
	checks []view.Check
	// nodes is set if the plan depends on Nodes other than this one.
	nodes bool
	// uses are the other Nodes with an endpoint of it, or that it forwards through.
	uses map[string]struct{}
	// unreachable counts its endpoints on unreachable nodes, by node, for nodes that have any.
	unreachable map[string]view.UnreachableEndpoints
	// wake is when to plan the Service again without a change, zero for never.
	wake time.Time
}
