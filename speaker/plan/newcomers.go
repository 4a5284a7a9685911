package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// NewFor is how long an endpoint counts as new after it became ready, and so the maximum duration of its check.
const NewFor = 2 * time.Second

// newcomers returns the new endpoints among the ready ones of a list, and when each became ready. A Pod without a
// readinessProbe is Ready before its program listens and briefly refuses connections; clients of kube-proxy therefore
// see errors in rolling updates. An endpoint that already takes connections, because there was no other, is not new to
// its list.
func (w *planning) newcomers(key listKey, from, ready map[netip.AddrPort]*view.Endpoint) map[netip.AddrPort]time.Time {
	before := w.before[key].servers
	var fresh map[netip.AddrPort]time.Time
	for at, since := range w.readySince(key, from) {
		if _, of := ready[at]; !of || since.IsZero() || before[at].Weight > 0 {
			continue
		}
		if fresh == nil {
			fresh = map[netip.AddrPort]time.Time{}
		}
		fresh[at] = since
	}
	return fresh
}

// readySince returns when the ready candidates became ready. The zero time means not new: the check has a result, the
// time is over, or it was ready in the first plan of the Service, since when is unknown. Only TCP endpoints can be new,
// because only TCP refuses connections.
func (w *planning) readySince(key listKey, from map[netip.AddrPort]*view.Endpoint) map[netip.AddrPort]time.Time {
	if !w.options.EndpointChecks || key.protocol != ipvs.TCP {
		return nil
	}
	key.local = false
	if done, ok := w.out.since[key]; ok {
		return done
	}
	before, planned := w.since[key]
	out := map[netip.AddrPort]time.Time{}
	for at, e := range from {
		if !e.Ready {
			continue
		}
		since, was := before[at]
		if planned && !was {
			since = w.now
		}
		if w.answered(at) || !w.now.Before(since.Add(NewFor)) {
			since = time.Time{}
		}
		out[at] = since
	}
	w.out.since[key] = out
	return out
}

// check requests the check of a new endpoint. Its result counts from the next plan on, so that all lists of one plan
// use the same results.
func (w *planning) check(at netip.AddrPort, since time.Time) {
	c := endpointCheck(at)
	w.checks[c] = struct{}{}
	if _, found := w.view.Checks[c]; found {
		w.wake(w.now)
	}
	w.wake(since.Add(NewFor))
}

// answered reports whether a check requested by the last plan of the Service has a result.
func (w *planning) answered(at netip.AddrPort) bool {
	c := endpointCheck(at)
	_, found := w.view.Checks[c]
	if !found {
		return false
	}
	_, asked := slices.BinarySearchFunc(w.asked, c, view.Check.Compare)
	return asked
}

// age has the Service planned again when the first of these endpoints is no longer new.
func (w *planning) age(since map[netip.AddrPort]time.Time) {
	for _, at := range since {
		if !at.IsZero() {
			w.wake(at.Add(NewFor))
		}
	}
}

// arriving returns the nodes on which all ready endpoints of a Service with policy Local are new, in a family and at
// one of its ports: routers need not send connections there yet (docs/design/data-plane.md, "What is new").
func (w *planning) arriving() map[view.NodeFamily]struct{} {
	if !w.options.EndpointChecks || !w.options.BGP || !w.svc.NeedsLocalEndpoint() {
		return nil
	}
	out := map[view.NodeFamily]struct{}{}
	for _, port := range w.svc.Ports {
		for _, v4 := range []bool{true, false} {
			w.arrivingAt(port, v4, out)
		}
	}
	return out
}

// arrivingAt requests checks of new endpoints on this node if another node has endpoints that are not new.
func (w *planning) arrivingAt(port view.Port, v4 bool, out map[view.NodeFamily]struct{}) {
	from := w.candidates(port, v4)
	since := w.readySince(listKey{name: port.Name, protocol: port.Protocol, v4: v4}, from)
	known, elsewhere := map[string]bool{}, false
	for at, e := range from {
		if e.Ready || e.Usable() {
			known[e.Node] = known[e.Node] || since[at].IsZero()
		}
		elsewhere = elsewhere || e.Ready && since[at].IsZero() && !w.isLocal(e)
	}
	for node, is := range known {
		if !is {
			out[view.NodeFamily{Node: node, IPv4: v4}] = struct{}{}
			w.age(since)
		}
	}
	for at, e := range from {
		if elsewhere && !since[at].IsZero() && w.isLocal(e) {
			w.check(at, since[at])
		}
	}
}

func endpointCheck(at netip.AddrPort) view.Check { return view.Check{Addr: at.Addr(), Port: at.Port()} }

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
