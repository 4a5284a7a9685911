package forwarding

import "github.com/ironlb/ironlb/speaker/view"

// arriving returns the nodes on which all ready endpoints of a port of policy Local are new, in a family: routers need
// not send connections there yet (docs/design/data-plane.md, "What is new"). It requests checks of new endpoints on
// this node if another node has endpoints that are not new.
func (w *planning) arriving(port view.Port, v4 bool) (out map[string]struct{}) {
	if _, local := w.out.Ports(v4); !w.options.EndpointChecks || !w.withArriving || !local {
		return nil
	}
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
			add(&out, node)
			w.age(since)
		}
	}
	for at, e := range from {
		if elsewhere && !since[at].IsZero() && w.isLocal(e) {
			w.check(at, since[at])
		}
	}
	return out
}
