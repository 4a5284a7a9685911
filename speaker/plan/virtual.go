package plan

import (
	"maps"
	"net/netip"
	"slices"
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
	virtuals map[ipvs.Key]virtual
	// unserved is why there are no virtual servers, if there are none.
	unserved view.Reason
	// lists are the lists of real servers that virtual servers share, with the draining ones.
	lists map[listKey]list
	// since is when the ready TCP endpoints of each port became ready, zero for those that are not new. Its keys have
	// local unset.
	since map[listKey]map[netip.AddrPort]time.Time
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

// virtual is the part of the plan that one Service needs for one virtual server.
type virtual struct {
	Server ipvs.VirtualServer
	// ClusterInternal is the virtual server for clients on this node, Pods and processes; nil if it is the same.
	ClusterInternal *ipvs.VirtualServer
	// Port is the Service port.
	Port uint16
	// Local is set if its address must be local; a node's own address must not.
	Local bool
	// Elements are the filter elements that it needs, without duplicates. Several virtual servers may need the same
	// one.
	Elements []ipvs.Element
}

func (v virtual) equal(w virtual) bool {
	if (v.ClusterInternal == nil) != (w.ClusterInternal == nil) || v.ClusterInternal != nil && !equalServers(*v.ClusterInternal, *w.ClusterInternal) {
		return false
	}
	return v.Port == w.Port && v.Local == w.Local && equalServers(v.Server, w.Server) && slices.Equal(v.Elements, w.Elements)
}

func equalServers(a, b ipvs.VirtualServer) bool {
	return a.Settings == b.Settings && maps.Equal(a.RealServers, b.RealServers)
}

// takesConnections reports whether a real server takes new connections.
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
	// Addrs are the node addresses to serve it on: those of NodePorts (5.1.2).
	Addrs AddrSet
}
