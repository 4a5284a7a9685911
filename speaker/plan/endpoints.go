package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// candidates returns the endpoints of a port in one family. One address and port counts once, whatever its slices: one that
// does not terminate comes before one that does (ipvs.md 3.4).
func (w *planning) candidates(port Port, v4 bool) map[netip.AddrPort]*Endpoint {
	key := listKey{name: port.Name, protocol: port.Protocol, v4: v4}
	if done, ok := w.byPort[key]; ok {
		return done
	}
	out := map[netip.AddrPort]*Endpoint{}
	w.byPort[key] = out
	for _, slice := range w.slices {
		number, ok := slice.number(port)
		if !ok {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Addr.Is4() != v4 || !e.Addr.IsValid() || e.Addr.IsUnspecified() {
				continue
			}
			at := netip.AddrPortFrom(e.Addr, number)
			if have, twice := out[at]; !twice || e.compare(have) < 0 {
				out[at] = e
			}
		}
	}
	return out
}

// number returns the slice's number for a port of the Service: the one with its name and protocol.
func (s Slice) number(port Port) (uint16, bool) {
	for _, p := range s.Ports {
		if p.Name == port.Name && p.Protocol == port.Protocol && p.Port != 0 {
			return p.Port, true
		}
	}
	return 0, false
}

// compare orders what several slices say of one endpoint, what counts first. Only equal ones compare as equal.
func (e *Endpoint) compare(f *Endpoint) int {
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

// choose returns the candidates of a list that take new connections. Those on unreachable nodes are left out first,
// before conditions, hints and checks count, so that each fallback takes effect at once: the endpoints of another
// zone, or those that terminate and still serve. It fails open: if none of the others is ready, or terminates and
// still serves, it chooses as if no node was unreachable. It does not if nothing would be chosen then either. A new
// endpoint that is ready counts, checked or not. Each list fails open by itself: one port of a Service may while
// another does not.
func (w *planning) choose(key listKey, from candidates) (chosen candidates, failedOpen bool) {
	left := w.reachable(from)
	if chosen = w.chooseOf(key, from, left); len(chosen) > 0 || len(left) == len(from) {
		return chosen, false
	}
	chosen = w.chooseOf(key, from, from)
	return chosen, len(chosen) > 0
}

// candidates are the endpoints of a port in one family.
type candidates = map[netip.AddrPort]*Endpoint

// chooseOf returns those of some candidates that take new connections: the ready ones that the topology hints allow,
// and while there is none those that still serve although they are terminating (ipvs.md 3.5, 3.6). Local are only
// those of this node, and for them hints do not count. While all of these are new and refuse, other ready ones stand
// in for them, or else those that terminate. It returns none only where none is ready or serves.
func (w *planning) chooseOf(key listKey, from, some candidates) candidates {
	ready, usable := candidates{}, candidates{}
	for at, e := range some {
		switch {
		case key.local && !w.isLocal(e):
		case e.Ready:
			ready[at] = e
		case e.usable():
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
		return ready // there is nobody else: a check would change nothing
	}
	for at := range ready {
		if since, is := fresh[at]; is {
			w.check(at, since)
		}
	}
	w.age(fresh)
	for _, chosen := range []map[netip.AddrPort]*Endpoint{minus(ready, fresh), known} {
		if len(chosen) > 0 {
			return chosen
		}
	}
	return usable
}

// isLocal tells whether the endpoint is on this node; one without a node is nobody's (ipvs.md 3.2).
func (w *planning) isLocal(e *Endpoint) bool { return e.Node != "" && e.Node == w.options.Node }

// hinted leaves those ready endpoints that are meant for this node, or else for its zone. A hint counts only if every
// endpoint has one of its kind and one of them is meant for here (ipvs.md 3.8).
func (w *planning) hinted(ready map[netip.AddrPort]*Endpoint) {
	zone := w.node.Zone()
	for _, hint := range []func(*Endpoint) (given, here bool){
		func(e *Endpoint) (bool, bool) {
			return len(e.ForNodes) > 0, slices.Contains(e.ForNodes, w.options.Node)
		},
		func(e *Endpoint) (bool, bool) {
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

// countReady returns the number of addresses of ready endpoints on this node, over all ports (ipvs.md 5.1.6): of the family that
// has more, because a dual-stack Pod is one endpoint.
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

// lookAtEndpoints records which addresses are endpoints, which nodes have a ready one, and which a serving one that is
// about to go. A node that is unreachable from here counts as any: whether it announces is for it to decide.
func (w *planning) lookAtEndpoints() {
	for _, slice := range w.slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			w.endpoints[e.Addr] = w.endpoints[e.Addr] || w.isLocal(e)
			if e.Node != "" && !w.isLocal(e) {
				w.out.uses[e.Node] = struct{}{}
			}
			switch {
			case e.Ready:
				w.out.ready[e.Node] = struct{}{}
			case e.usable():
				w.out.usable[e.Node] = struct{}{}
			}
		}
	}
}

// pod is a real server that takes new connections; drained one that only keeps those it has.
var (
	pod     = ipvs.RealServer{Weight: 1, Forward: ipvs.Masquerade}
	drained = ipvs.RealServer{Weight: 0, Forward: ipvs.Masquerade}
)
