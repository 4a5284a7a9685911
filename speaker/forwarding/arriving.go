package forwarding

import "github.com/ironlb/ironlb/speaker/view"

// arriving returns the nodes on which all ready endpoints of a Service with policy Local are new, in a family and at
// one of its ports: routers need not send connections there yet (docs/design/data-plane.md, "What is new").
func (w *planning) arriving() map[view.NodeFamily]struct{} {
	if !w.options.EndpointChecks || !w.withArriving || !w.out.NeedsLocalEndpoint {
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
	since := w.readySince(ListKey{Port: port.Name, Protocol: port.Protocol, IPv4: v4}, from)
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
