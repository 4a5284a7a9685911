package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// NewFor is how long an endpoint counts as new after it became ready, and so how long its check takes at most.
const NewFor = 2 * time.Second

// newcomers returns those ready endpoints of a list that are new, and when each became ready. A Pod without a readinessProbe is Ready before its
// program listens, and refuses connections for a moment: so clients of kube-proxy see errors in rolling updates. An endpoint that takes
// connections already because there was no other is not new to its list.
func (w *planning) newcomers(key listKey, from, ready map[netip.AddrPort]*Endpoint) map[netip.AddrPort]time.Time {
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

// readySince returns when those candidates that are ready became so: the zero time for what is not new any more, because its check has a result or
// its time is up, and for what is ready in the first plan of a Service: nobody knows since when. Only TCP refuses.
func (w *planning) readySince(key listKey, from map[netip.AddrPort]*Endpoint) map[netip.AddrPort]time.Time {
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

// check asks for the check of a new endpoint. Its result counts from the next plan on, or one list of this plan would know what another does not.
func (w *planning) check(at netip.AddrPort, since time.Time) {
	c := endpointCheck(at)
	w.checks[c] = struct{}{}
	if _, found := w.view.Checks[c]; found {
		w.wake(w.now)
	}
	w.wake(since.Add(NewFor))
}

// answered reports whether a check that the last plan of the Service asked for has a result.
func (w *planning) answered(at netip.AddrPort) bool {
	c := endpointCheck(at)
	_, found := w.view.Checks[c]
	if !found {
		return false
	}
	_, asked := slices.BinarySearchFunc(w.asked, c, Check.compare)
	return asked
}

// age has the Service planned again when the first of these endpoints is not new any more.
func (w *planning) age(since map[netip.AddrPort]time.Time) {
	for _, at := range since {
		if !at.IsZero() {
			w.wake(at.Add(NewFor))
		}
	}
}

// nodeFamily is a node in one family of addresses.
type nodeFamily struct {
	node string
	v4   bool
}

// arriving returns the nodes where all that a Service of policy Local has ready in a family is new, at one of its ports: routers need not send
// connections there yet (docs/design/data-plane.md, "What is new").
func (w *planning) arriving() map[nodeFamily]struct{} {
	if !w.options.EndpointChecks || !w.options.BGP || !w.svc.needsLocalEndpoint() {
		return nil
	}
	out := map[nodeFamily]struct{}{}
	for _, port := range w.svc.Ports {
		for _, v4 := range []bool{true, false} {
			w.arrivingAt(port, v4, out)
		}
	}
	return out
}

// arrivingAt asks for the checks of this node's endpoints that are new, where another node has ones that are not.
func (w *planning) arrivingAt(port Port, v4 bool, out map[nodeFamily]struct{}) {
	from := w.candidates(port, v4)
	since := w.readySince(listKey{name: port.Name, protocol: port.Protocol, v4: v4}, from)
	known, elsewhere := map[string]bool{}, false
	for at, e := range from {
		if e.Ready || e.usable() {
			known[e.Node] = known[e.Node] || since[at].IsZero()
		}
		elsewhere = elsewhere || e.Ready && since[at].IsZero() && !w.isLocal(e)
	}
	for node, is := range known {
		if !is {
			out[nodeFamily{node, v4}] = struct{}{}
			w.age(since)
		}
	}
	for at, e := range from {
		if elsewhere && !since[at].IsZero() && w.isLocal(e) {
			w.check(at, since[at])
		}
	}
}

func endpointCheck(at netip.AddrPort) Check { return Check{Addr: at.Addr(), Port: at.Port()} }

// minus returns the endpoints that are not among those, and the same map if none is.
func minus[T any](endpoints map[netip.AddrPort]*Endpoint, those map[netip.AddrPort]T) map[netip.AddrPort]*Endpoint {
	if len(those) == 0 {
		return endpoints
	}
	out := make(map[netip.AddrPort]*Endpoint, len(endpoints))
	for at, e := range endpoints {
		if _, is := those[at]; !is {
			out[at] = e
		}
	}
	return out
}
