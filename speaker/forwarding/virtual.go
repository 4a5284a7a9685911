package forwarding

import (
	"cmp"
	"maps"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// virtual is the part of the plan that one Service needs for one virtual server. It is immutable once planned: the
// plan of the Service, its claim and what is installed share it.
type virtual struct {
	Server ipvs.VirtualServer
	// ClusterInternal is the virtual server for clients on this node, Pods and processes; nil if it is the same.
	ClusterInternal *ipvs.VirtualServer
	// Direct is its first tier; nil if it has none. Digest is that of its slots, 0 for none.
	Direct *ipvs.Directed
	Digest uint64
	// Port is the Service port.
	Port uint16
	// Local is set if its address must be local; a node's own address must not.
	Local bool
	// Elements are the filter elements that it needs, without duplicates. Several virtual servers may need the same
	// one.
	Elements []ipvs.Element
}

func (v *virtual) equal(w *virtual) bool {
	if (v.ClusterInternal == nil) != (w.ClusterInternal == nil) || v.ClusterInternal != nil && !equalServers(*v.ClusterInternal, *w.ClusterInternal) {
		return false
	}
	if (v.Direct == nil) != (w.Direct == nil) || v.Direct != nil && *v.Direct != *w.Direct {
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

// claim is the request of one Service for a virtual server. Of several claims for one key the oldest wins.
type claim struct {
	service pools.ServiceKey
	created int64
	virtual *virtual
}

// compare orders claims by age, then by name.
func (c claim) compare(d claim) int {
	return cmp.Or(cmp.Compare(c.created, d.created), cmp.Compare(c.service.Namespace, d.service.Namespace),
		cmp.Compare(c.service.Name, d.service.Name))
}
