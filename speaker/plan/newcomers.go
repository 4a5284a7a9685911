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
// or its time is up, and for what is ready in the first plan of a Service: nobody knows since when. Only TCP refuses.
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
		if _, found := w.view.Checks[endpointCheck(at)]; found || !w.now.Before(since.Add(NewFor)) {
			since = time.Time{}
		}
		out[at] = since
	}
	w.out.since[key] = out
	return out
}

// arrives tells whether what is ready on this node of a Service of policy Local is new, all of it at one of the ports, while there is one
// on another node that is not: then routers are to send connections there (docs/design/data-plane.md, "What is new"). It asks for the checks.
func (w *planning) arrives() bool {
	arrives := false
	if !w.options.EndpointChecks || !w.svc.needsLocalEndpoint() {
		return false
	}
	for _, port := range w.svc.Ports {
		for _, v4 := range []bool{true, false} {
			arrives = w.portArrives(port, v4) || arrives
		}
	}
	return arrives
}

func (w *planning) portArrives(port Port, v4 bool) bool {
	from := w.candidates(port, v4)
	since := w.readySince(listKey{name: port.Name, protocol: port.Protocol, v4: v4}, from)
	here, elsewhere := map[netip.AddrPort]*Endpoint{}, false
	for at, e := range from {
		known := e.Ready && since[at].IsZero()
		switch {
		case !w.isLocal(e):
			elsewhere = elsewhere || known && e.Node != ""
		case known, e.usable():
			return false
		case e.Ready:
			here[at] = e
		}
	}
	w.check(here, since)
	return len(here) > 0 && elsewhere
}

// check asks for the checks of these endpoints, and has the Service planned again when the first of all new ones is not any more.
func (w *planning) check(endpoints map[netip.AddrPort]*Endpoint, since map[netip.AddrPort]time.Time) {
	if len(endpoints) == 0 {
		return
	}
	for at := range endpoints {
		w.checks[endpointCheck(at)] = struct{}{}
	}
	for _, at := range since {
		if !at.IsZero() {
			w.wake(at.Add(NewFor))
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
