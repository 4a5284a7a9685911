package plan

import (
	"net/netip"
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

// readySince returns when those candidates that are ready became so: the zero time for what is not new any more, because its check has a result
// or its time is up, and for what is ready in the first plan of a Service: nobody knows since when. It asks for the checks of the others. Only
// TCP refuses.
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
		if !since.IsZero() {
			since = w.check(at, since)
		}
		out[at] = since
	}
	w.out.since[key] = out
	return out
}

// check asks for the check of an endpoint while it is new, and returns since when it is ready, or the zero time if it is not new any more.
func (w *planning) check(at netip.AddrPort, since time.Time) time.Time {
	end := since.Add(NewFor)
	if _, found := w.view.Checks[endpointCheck(at)]; found || !w.now.Before(end) {
		return time.Time{}
	}
	w.checks[endpointCheck(at)] = struct{}{}
	w.wake(end)
	return since
}

// nodeFamily is a node in one family of addresses.
type nodeFamily struct {
	node string
	v4   bool
}

// arriving returns the nodes where all that a Service of policy Local has ready is new, at one of its ports: routers need not send connections
// there yet (docs/design/data-plane.md, "What is new").
func (w *planning) arriving() map[nodeFamily]struct{} {
	if !w.options.EndpointChecks || !w.svc.needsLocalEndpoint() {
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

func (w *planning) arrivingAt(port Port, v4 bool, out map[nodeFamily]struct{}) {
	from := w.candidates(port, v4)
	since := w.readySince(listKey{name: port.Name, protocol: port.Protocol, v4: v4}, from)
	known := map[string]bool{}
	for at, e := range from {
		if e.Ready || e.usable() {
			known[e.Node] = known[e.Node] || since[at].IsZero()
		}
	}
	for node, is := range known {
		if !is {
			out[nodeFamily{node, v4}] = struct{}{}
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
