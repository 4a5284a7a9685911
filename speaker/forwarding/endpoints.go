package forwarding

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// candidates returns the endpoints of a port in one family. An address and port in several slices counts once; the
// entry that is not terminating has precedence.
func (w *planning) candidates(port view.Port, v4 bool) map[netip.AddrPort]*view.Endpoint {
	key := ListKey{Port: port.Name, Protocol: port.Protocol, IPv4: v4}
	if done, ok := w.byPort[key]; ok {
		return done
	}
	out := map[netip.AddrPort]*view.Endpoint{}
	w.byPort[key] = out
	for _, slice := range w.slices {
		number, ok := numberOf(slice, port)
		if !ok {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Addr.Is4() != v4 || !e.Addr.IsValid() || e.Addr.IsUnspecified() {
				continue
			}
			at := netip.AddrPortFrom(e.Addr, number)
			if have, twice := out[at]; !twice || compareEndpoints(e, have) < 0 {
				out[at] = e
			}
		}
	}
	return out
}

// numberOf returns the slice's number of a Service port, matched by name and protocol.
func numberOf(s view.Slice, port view.Port) (uint16, bool) {
	for _, p := range s.Ports {
		if p.Name == port.Name && p.Protocol == port.Protocol && p.Port != 0 {
			return p.Port, true
		}
	}
	return 0, false
}

// compareEndpoints orders the entries of several slices for one endpoint by precedence. Only equal ones compare as
// equal.
func compareEndpoints(e, f *view.Endpoint) int {
	return cmp.Or(
		falseFirst(e.Terminating, f.Terminating), falseFirst(!e.Ready, !f.Ready), falseFirst(!e.Serving, !f.Serving),
		cmp.Compare(e.Node, f.Node), slices.Compare(e.ForNodes, f.ForNodes), slices.Compare(e.ForZones, f.ForZones),
	)
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// countReady returns the number of addresses of ready endpoints on this node, over all ports, in the
// family that has more, because a dual-stack Pod is one endpoint.
func (w *planning) countReady() int {
	four, six := map[netip.Addr]struct{}{}, map[netip.Addr]struct{}{}
	for _, slice := range w.slices {
		for i := range slice.Endpoints {
			switch e := &slice.Endpoints[i]; {
			case !e.Ready || !w.isLocal(e):
			case e.Addr.Is4():
				four[e.Addr] = struct{}{}
			default:
				six[e.Addr] = struct{}{}
			}
		}
	}
	return max(len(four), len(six))
}

// recordEndpoints records the endpoint addresses, the nodes with a ready endpoint, and the nodes with a terminating one
// that still serves. Nodes that are unreachable from here are included, because each node plans its own announcements.
func (w *planning) recordEndpoints() {
	for _, slice := range w.slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			w.endpoints[e.Addr] = w.endpoints[e.Addr] || w.isLocal(e)
			if e.Node != "" && !w.isLocal(e) {
				w.out.uses[e.Node] = struct{}{}
			}
			switch {
			case e.Ready:
				w.out.Ready[e.Node] = struct{}{}
			case e.Usable():
				w.out.Usable[e.Node] = struct{}{}
			}
		}
	}
}
