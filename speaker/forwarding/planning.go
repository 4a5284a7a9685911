package forwarding

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// planning is the plan of one Service in progress.
type planning struct {
	view *view.View
	name string // of this node
	// withArriving is set if the nodes with new endpoints only are needed.
	withArriving bool
	options      Options
	now          time.Time
	svc          view.Service
	slices       map[string]view.Slice
	node         view.Node // this one
	pods         podsKnown
	// before are the lists of the last plan of the Service, since the times at which its endpoints became ready.
	before map[ListKey]list
	since  map[ListKey]map[netip.AddrPort]time.Time
	asked  []view.Check // by the last plan, sorted
	checks map[view.Check]struct{}
	// nodes are the nodes of tunnels. direct is set if the Service is forwarded directly, directIPv6 if its IPv6
	// addresses are, too. directed are the first tiers of the last plan, spreads the numbers of endpoints that get slots.
	nodes      *nodeTable
	direct     bool
	directIPv6 bool
	directed   map[ipvs.Key]directed
	spreads    map[ListKey]map[uint16]int
	silent     map[string]silence // of the last plan
	// byPort are the candidates of each port; the keys have Local unset.
	byPort map[ListKey]map[netip.AddrPort]*view.Endpoint
	// endpoints are the addresses in the slices, true for those on this node.
	endpoints map[netip.Addr]bool
	out       servicePlan
}

// wake has the Service planned again at that time at the latest.
func (w *planning) wake(at time.Time) { w.out.wake = incremental.Earlier(w.out.wake, at) }

// isLocal reports whether the endpoint is on this node; one without a node is on none.
func (w *planning) isLocal(e *view.Endpoint) bool { return e.Node != "" && e.Node == w.name }

// virtualServer returns a virtual server with these real servers.
func (w *planning) virtualServer(l list) ipvs.VirtualServer {
	return ipvs.VirtualServer{Settings: w.settings(), RealServers: l.servers}
}

func (w *planning) settings() ipvs.Settings {
	s := ipvs.Settings{Scheduler: w.svc.Scheduler, Flags: w.svc.Flags}
	if s.Scheduler == "" {
		s = ipvs.Settings{Scheduler: cmp.Or(w.options.Scheduler, ipvs.RoundRobin), Flags: w.options.Flags}
	}
	if w.svc.Affinity > 0 {
		s.Flags, s.Timeout = s.Flags|ipvs.Persistent, w.svc.Affinity
	}
	return s
}

// add adds a virtual server of a port.
func (w *planning) add(key ipvs.Key, port view.Port, v *virtual) {
	v.Port = port.Port
	v.Elements = sorted(append(v.Elements, ipvs.Element{Set: ipvs.Served, Key: key}))
	w.out.virtuals[key] = v
}

// sorted returns the elements sorted, without duplicates, in a slice without spare capacity.
func sorted(elements []ipvs.Element) []ipvs.Element {
	slices.SortFunc(elements, ipvs.Element.Compare)
	elements = slices.Compact(elements)
	return append(make([]ipvs.Element, 0, len(elements)), elements...)
}
