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
		if p.Name == port.Name && p.Protocol == port.Protocol && p.Protocol != 0 && p.Port != 0 {
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

// offering returns the slices with one of the ports: the endpoints of the others take no connections.
func offering(all map[string]view.Slice, ports []view.Port) map[string]view.Slice {
	out := make(map[string]view.Slice, len(all))
	for name, slice := range all {
		if slices.ContainsFunc(ports, func(p view.Port) bool { _, ok := numberOf(slice, p); return ok }) {
			out[name] = slice
		}
	}
	return out
}

// recordEndpoints records the endpoint addresses and their nodes.
func (w *planning) recordEndpoints() {
	for _, slice := range w.slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			w.endpoints[e.Addr] = w.endpoints[e.Addr] || w.isLocal(e)
			if e.Node != "" && !w.isLocal(e) {
				w.out.uses[e.Node] = struct{}{}
			}
		}
	}
}

// recordNodes records the nodes with endpoints of each port, for announcements and the healthCheckNodePort. Nodes that
// are unreachable from here are included, because each node plans its own announcements.
func (w *planning) recordNodes() {
	if !slices.ContainsFunc(w.out.Addresses, func(a view.Address) bool { return a.Kind != view.ClusterIP }) && !w.servesHealth() {
		return
	}
	for _, port := range w.svc.Ports {
		w.out.IPv4 = w.addNodes(w.out.IPv4, port, true)
		w.out.IPv6 = w.addNodes(w.out.IPv6, port, false)
	}
}

// addNodes adds a port that has endpoints in a family, unless another one has the same nodes.
func (w *planning) addNodes(to []view.PortNodes, port view.Port, v4 bool) []view.PortNodes {
	p := view.PortNodes{Port: port.Name}
	for _, e := range w.candidates(port, v4) {
		switch {
		case e.Ready:
			add(&p.Ready, e.Node)
		case e.Usable():
			add(&p.Usable, e.Node)
		}
	}
	if len(p.Ready)+len(p.Usable) == 0 {
		return to
	}
	p.Arriving = w.arriving(port, v4)
	if slices.ContainsFunc(to, p.Equal) {
		return to
	}
	return append(to, p)
}

// add adds to a set, which may be nil.
func add(set *map[string]struct{}, name string) {
	if *set == nil {
		*set = map[string]struct{}{}
	}
	(*set)[name] = struct{}{}
}

// countHere returns the number of addresses of ready endpoints on this node in a family, over all ports, and 0 if
// another node serves a port that this one does not.
func (w *planning) countHere(v4 bool) int {
	if ports, _ := w.out.Ports(v4); !view.Serves(ports, w.name) {
		return 0
	}
	addrs := map[netip.Addr]struct{}{}
	for key, from := range w.byPort {
		for at, e := range from {
			if key.IPv4 == v4 && e.Ready && w.isLocal(e) {
				addrs[at.Addr()] = struct{}{}
			}
		}
	}
	return len(addrs)
}
