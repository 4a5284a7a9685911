package forwarding

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// unreachable reports whether an endpoint is on an unreachable node, and since when. An endpoint on this node, or
// without a node, never is.
func (w *planning) unreachable(e *view.Endpoint) (since time.Time, is bool) {
	if e.Node == "" || w.isLocal(e) {
		return time.Time{}, false
	}
	since, is = w.view.Unreachable[e.Node]
	return since, is
}

// reachable returns the candidates that are not on an unreachable node, and the same map if none is.
func (w *planning) reachable(from candidates) candidates {
	if len(w.view.Unreachable) == 0 {
		return from
	}
	out := map[netip.AddrPort]struct{}{}
	for at, e := range from {
		if _, is := w.unreachable(e); is {
			out[at] = struct{}{}
		}
	}
	return minus(from, out)
}

// countUnreachable counts the endpoints of a list on unreachable nodes.
func (w *planning) countUnreachable(l list, from candidates) {
	if len(w.view.Unreachable) == 0 {
		return
	}
	anyReady := false
	for _, e := range from {
		anyReady = anyReady || e.Ready
	}
	for at, e := range from {
		if _, is := w.unreachable(e); !is || !e.Ready && (anyReady || !e.Usable()) {
			continue
		}
		if w.out.unreachable == nil {
			w.out.unreachable = map[string]view.UnreachableEndpoints{}
		}
		n := w.out.unreachable[e.Node]
		switch {
		case !l.failedOpen:
			n.LeftOut++
		case l.servers[at].Weight > 0:
			n.FailedOpen++
		}
		w.out.unreachable[e.Node] = n
	}
}

// stays reports whether a node that is unreachable since then is still a real server of weight 0, and has the Service
// planned again when that ends. Only TCP has connections to keep.
func (w *planning) stays(protocol ipvs.Protocol, since time.Time) bool {
	until := w.options.resetAt(since)
	if protocol != ipvs.TCP || !until.IsZero() && !w.now.Before(until) {
		return false
	}
	w.wake(until)
	return true
}
