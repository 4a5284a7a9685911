package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// servicePlan is what one Service asks of this node.
type servicePlan struct {
	// addresses are those that may be served or answered for here, each with the pool that has it; refused are the others.
	addresses []Address
	refused   map[netip.Addr]pools.Refusal
	virtuals  map[ipvs.Key]virtual
	// unserved is why there are no virtual servers, if so.
	unserved Reason
	// lists are the real servers that the virtual servers share, with what drains.
	lists map[listKey]list
	// since is when the ready TCP endpoints of each port became so, zero for those that are not new. Its keys are those of lists that are not local.
	since map[listKey]map[netip.AddrPort]time.Time
	// ready and usable are the nodes with a ready endpoint, and with a serving one that is about to go.
	ready, usable map[string]struct{}
	// arriving are the nodes whose ready endpoints of a family are all new at one of the ports; with policy Local only.
	arriving map[nodeFamily]struct{}
	// health is the healthCheckNodePort to serve, nil if none.
	health *HealthPort
	// elements of the packet filter that belong to no one virtual server.
	elements []ipvs.Element
	// checks are the probes of nodes and of new endpoints that it needs.
	checks []Check
	// nodes is set if the plan depends on Nodes other than this one.
	nodes bool
	// uses are the other Nodes that it has an endpoint on, or forwards by way of.
	uses map[string]struct{}
	// unreachable counts its endpoints on unreachable nodes, by node; none for a node without.
	unreachable map[string]UnreachableEndpoints
	// wake is when the Service must be planned again although nothing touched it, zero for never.
	wake time.Time
}

// virtual is what one Service asks of this node for one virtual server.
type virtual struct {
	Server ipvs.VirtualServer
	// Inside is what Pods of and processes on this node get in its place; nil if that is the same.
	Inside *ipvs.VirtualServer
	// Local is set if its address must be made local; a node's own address must not.
	Local bool
	// Elements of the packet filter that it needs, without repetition. Several virtual servers may need the same.
	Elements []ipvs.Element
}

func (v virtual) equal(w virtual) bool {
	if (v.Inside == nil) != (w.Inside == nil) || v.Inside != nil && !equalServers(*v.Inside, *w.Inside) {
		return false
	}
	return v.Local == w.Local && equalServers(v.Server, w.Server) && slices.Equal(v.Elements, w.Elements)
}

func equalServers(a, b ipvs.VirtualServer) bool {
	return a.Settings == b.Settings && maps.Equal(a.RealServers, b.RealServers)
}

// takesConnections tells whether a real server takes new ones.
func takesConnections(vs ipvs.VirtualServer) bool {
	for _, server := range vs.RealServers {
		if server.Weight > 0 {
			return true
		}
	}
	return false
}

// HealthPort is a healthCheckNodePort to serve (ipvs.md 5.1).
type HealthPort struct {
	Port    uint16
	Service pools.ServiceKey
	// LocalEndpoints is the number of ready endpoints on this node.
	LocalEndpoints int
	// Addrs are the node's addresses to serve it at: those of NodePorts (5.1.2).
	Addrs AddrSet
}

// Check is a probe of another node, which says whether connections may be forwarded there; without a Path, of a new TCP endpoint, and
// has a result as soon as nothing speaks against its taking connections.
type Check struct {
	Node string
	Addr netip.Addr
	Port uint16
	Path string
}

func (c Check) compare(d Check) int {
	return cmp.Or(cmp.Compare(c.Node, d.Node), c.Addr.Compare(d.Addr), cmp.Compare(c.Port, d.Port), cmp.Compare(c.Path, d.Path))
}

// CheckResult is the outcome of a Check.
type CheckResult struct {
	Healthy bool
	Weight  uint32
}
