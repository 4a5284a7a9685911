package forwarding

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// ListKey identifies one list of real servers of a Service. All virtual servers of a port with the same family and
// policy share one list.
type ListKey struct {
	// Port is the name of the port of the Service.
	Port     string
	Protocol ipvs.Protocol
	IPv4     bool
	// Local is set for endpoints of this node only, Slots for those that get slots.
	Local, Slots bool
}

// list is a list of real servers that are endpoints.
type list struct {
	servers map[netip.AddrPort]ipvs.RealServer
	// chosen is the number of servers that take new connections.
	chosen int
	// failedOpen is set if they were chosen as if every node was reachable, because otherwise none would be.
	failedOpen bool
	// since is when an endpoint was first seen as terminating, or as no longer chosen.
	since map[netip.AddrPort]time.Time
}

// candidates are the endpoints of a port in one family.
type candidates = map[netip.AddrPort]*view.Endpoint

// pod is a real server that takes new connections; drained is one that only keeps its connections.
var (
	pod     = ipvs.RealServer{Weight: 1, Forward: ipvs.Masquerade}
	drained = ipvs.RealServer{Weight: 0, Forward: ipvs.Masquerade}
)

// minus returns the endpoints that are not in those, and the same map if those is empty.
func minus[T any](endpoints map[netip.AddrPort]*view.Endpoint, those map[netip.AddrPort]T) map[netip.AddrPort]*view.Endpoint {
	if len(those) == 0 {
		return endpoints
	}
	out := make(map[netip.AddrPort]*view.Endpoint, len(endpoints))
	for at, e := range endpoints {
		if _, is := those[at]; !is {
			out[at] = e
		}
	}
	return out
}
