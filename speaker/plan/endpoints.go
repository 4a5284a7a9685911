package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// candidates returns the endpoints of a port in one family. An address and port in several slices counts once; the
// entry that is not terminating has precedence (ipvs.md 3.4).
func (w *planning) candidates(port view.Port, v4 bool) map[netip.AddrPort]*view.Endpoint {
	key := listKey{name: port.Name, protocol: port.Protocol, v4: v4}
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

// choose returns the candidates of a list that take new connections. Endpoints on unreachable nodes are excluded first,
// before conditions, hints and checks. So each fallback takes effect at once: endpoints of another zone, or terminating
// ones that still serve. The list fails open: if no remaining endpoint is ready, or terminating and serving, it chooses
// as if every node was reachable. It does not fail open if that would choose nothing either. A new endpoint that is
// ready counts, checked or not. Each list fails open independently: one port of a Service may while another does not.
func (w *planning) choose(key listKey, from candidates) (chosen candidates, failedOpen bool) {
	left := w.reachable(from)
	if chosen = w.chooseOf(key, from, left); len(chosen) > 0 || len(left) == len(from) {
		return chosen, false
	}
	chosen = w.chooseOf(key, from, from)
	return chosen, len(chosen) > 0
}

// candidates are the endpoints of a port in one family.
type candidates = map[netip.AddrPort]*view.Endpoint

// chooseOf returns the candidates among some that take new connections: the ready ones that the topology hints allow,
// and if there is none, the terminating ones that still serve (ipvs.md 3.5, 3.6). A local list has only endpoints of
// this node and ignores hints. While all of these are new and refuse connections, other ready ones replace them, or
// else terminating ones. It returns none only if none is ready or serves.
func (w *planning) chooseOf(key listKey, from, some candidates) candidates {
	ready, usable := candidates{}, candidates{}
	for at, e := range some {
		switch {
		case key.local && !w.isLocal(e):
		case e.Ready:
			ready[at] = e
		case e.Usable():
			usable[at] = e
		}
	}
	fresh := w.newcomers(key, from, ready)
	if len(ready) == 0 {
		return usable
	}
	known := minus(ready, fresh)
	if !key.local {
		w.hinted(ready)
	}
	if len(known)+len(usable) == 0 {
		return ready // no alternative: a check would change nothing
	}
	for at := range ready {
		if since, is := fresh[at]; is {
			w.check(at, since)
		}
	}
	w.age(fresh)
	for _, chosen := range []map[netip.AddrPort]*view.Endpoint{minus(ready, fresh), known} {
		if len(chosen) > 0 {
			return chosen
		}
	}
	return usable
}

// isLocal reports whether the endpoint is on this node; one without a node is on none (ipvs.md 3.2).
func (w *planning) isLocal(e *view.Endpoint) bool { return e.Node != "" && e.Node == w.options.Node }

// hinted keeps the ready endpoints with a hint for this node, or else for its zone. A kind of hint counts only if every
// endpoint has one and at least one matches (ipvs.md 3.8).
func (w *planning) hinted(ready map[netip.AddrPort]*view.Endpoint) {
	zone := w.node.Zone()
	for _, hint := range []func(*view.Endpoint) (given, here bool){
		func(e *view.Endpoint) (bool, bool) {
			return len(e.ForNodes) > 0, slices.Contains(e.ForNodes, w.options.Node)
		},
		func(e *view.Endpoint) (bool, bool) {
			return len(e.ForZones) > 0, zone != "" && slices.Contains(e.ForZones, zone)
		},
	} {
		all, any := true, false
		for _, e := range ready {
			given, here := hint(e)
			all, any = all && given, any || here
		}
		if !all || !any {
			continue
		}
		for at, e := range ready {
			if _, here := hint(e); !here {
				delete(ready, at)
			}
		}
		return
	}
}

// countReady returns the number of addresses of ready endpoints on this node, over all ports (ipvs.md 5.1.6), in the
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

// pod is a real server that takes new connections; drained is one that only keeps its connections.
var (
	pod     = ipvs.RealServer{Weight: 1, Forward: ipvs.Masquerade}
	drained = ipvs.RealServer{Weight: 0, Forward: ipvs.Masquerade}
)
