package plan

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// checked returns those ready endpoints of a list that are not new to it, or whose check has a result. A Pod without a readinessProbe is
// Ready before its program listens, and refuses connections for a moment: so clients of kube-proxy see errors in rolling updates.
//
// The first list of a Service has no new endpoint: nobody knows since when they are ready. Only TCP refuses.
func (w *planning) checked(key listKey, ready map[netip.AddrPort]*Endpoint) map[netip.AddrPort]*Endpoint {
	before, listed := w.before[key]
	if !w.options.EndpointChecks || key.protocol != ipvs.TCP || !listed {
		return ready
	}
	out := make(map[netip.AddrPort]*Endpoint, len(ready))
	for at, e := range ready {
		_, found := w.view.Checks[endpointCheck(at)]
		if found || before.servers[at].Weight > 0 {
			out[at] = e
		}
	}
	return out
}

// check asks for the checks of those ready endpoints that are not chosen.
func (w *planning) check(ready, chosen map[netip.AddrPort]*Endpoint) {
	for at := range ready {
		if _, is := chosen[at]; !is {
			w.checks[endpointCheck(at)] = struct{}{}
		}
	}
}

func endpointCheck(at netip.AddrPort) Check { return Check{Addr: at.Addr(), Port: at.Port()} }
