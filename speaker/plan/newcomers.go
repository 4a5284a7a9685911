package plan

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// NewFor is how long an endpoint counts as new after it became ready, and so how long its check takes at most.
const NewFor = 2 * time.Second

// newcomers returns those ready endpoints of a list that are new, and when each became ready. A Pod without a readinessProbe is Ready before its
// program listens, and refuses connections for a moment: so clients of kube-proxy see errors in rolling updates. An endpoint is not new
// any more when its check has a result, or when it takes connections already because there was no other.
//
// What is ready in the first plan of a Service is not new: nobody knows since when. Only TCP refuses.
func (w *planning) newcomers(key listKey, from, ready map[netip.AddrPort]*Endpoint) map[netip.AddrPort]time.Time {
	if !w.options.EndpointChecks || key.protocol != ipvs.TCP {
		return nil
	}
	before := w.before[key].servers
	var fresh map[netip.AddrPort]time.Time
	for at, since := range w.readySince(key, from) {
		if _, of := ready[at]; !of || since.IsZero() || !w.now.Before(since.Add(NewFor)) || before[at].Weight > 0 {
			continue
		}
		if _, found := w.view.Checks[endpointCheck(at)]; found {
			continue
		}
		if fresh == nil {
			fresh = map[netip.AddrPort]time.Time{}
		}
		fresh[at] = since
	}
	return fresh
}

// readySince returns when those candidates that are ready became so: the zero time for those of the first plan.
func (w *planning) readySince(key listKey, from map[netip.AddrPort]*Endpoint) map[netip.AddrPort]time.Time {
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
		out[at] = since
	}
	w.out.since[key] = out
	return out
}

// check asks for the checks of those ready endpoints that are not chosen because they are new, and has the Service planned again when the first
// of all new ones is not any more.
func (w *planning) check(ready, chosen map[netip.AddrPort]*Endpoint, fresh map[netip.AddrPort]time.Time) {
	waits := false
	for at := range ready {
		if _, is := chosen[at]; !is {
			w.checks[endpointCheck(at)] = struct{}{}
			waits = true
		}
	}
	if !waits {
		return
	}
	for _, since := range fresh {
		w.wake(since.Add(NewFor))
	}
}

func endpointCheck(at netip.AddrPort) Check { return Check{Addr: at.Addr(), Port: at.Port()} }

// without returns the endpoints that are not among those, and the same map if none is.
func without(endpoints map[netip.AddrPort]*Endpoint, those map[netip.AddrPort]time.Time) map[netip.AddrPort]*Endpoint {
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
