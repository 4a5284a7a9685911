package forwarding

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// list returns the real servers of a port.
func (w *planning) list(port view.Port, v4, local bool) list {
	key := ListKey{Port: port.Name, Protocol: port.Protocol, IPv4: v4, Local: local}
	if done, ok := w.out.lists[key]; ok {
		return done
	}
	from := w.candidates(port, v4)
	chosen, failedOpen := w.choose(key, from)
	out := list{
		servers: make(map[netip.AddrPort]ipvs.RealServer, len(chosen)), chosen: len(chosen), failedOpen: failedOpen,
	}
	for at := range chosen {
		out.servers[at] = pod
	}
	if port.Protocol == ipvs.TCP {
		w.drain(&out, w.before[key], from, local)
	}
	if !local {
		w.countUnreachable(out, from)
	}
	w.out.lists[key] = out
	return out
}

// drain keeps listed TCP endpoints that are not chosen, with weight 0: terminating ones, so that a new process finds
// them, too; previously chosen ones that are not ready any more, that the hints assign elsewhere, or whose node is
// unreachable; and in the first plan of a Service those that an earlier process may have left out. Their connections
// continue for at most Options.DrainLimit, and at most Options.ResetAfter after their node became unreachable. An
// endpoint that leaves its slice is removed at once. UDP and SCTP do not drain.
func (w *planning) drain(out *list, before list, from map[netip.AddrPort]*view.Endpoint, local bool) {
	for at, e := range from {
		if _, chosen := out.servers[at]; chosen || local && !w.isLocal(e) {
			continue
		}
		since, drains := before.since[at]
		if _, had := before.servers[at]; !drains && !had && !e.Terminating && !w.wasLeftOut(e, out.failedOpen) {
			continue
		}
		if !drains {
			since = w.now
		}
		if out.since == nil {
			out.since = map[netip.AddrPort]time.Time{}
		}
		out.since[at] = since // kept after the limit, or it would start again
		if until := w.drainsUntil(e, since, out.failedOpen); !until.IsZero() {
			if !w.now.Before(until) {
				continue
			}
			w.wake(until)
		}
		out.servers[at] = drained
	}
}

// wasLeftOut reports whether an earlier process may have left out an endpoint because its node was unreachable.
func (w *planning) wasLeftOut(e *view.Endpoint, failedOpen bool) bool {
	_, unreachable := w.unreachable(e)
	return w.before == nil && unreachable && e.Ready && !failedOpen
}

// drainsUntil returns when an endpoint that drains since then is removed, zero for never. In a list that failed open,
// unreachable nodes count as reachable.
func (w *planning) drainsUntil(e *view.Endpoint, since time.Time, failedOpen bool) (until time.Time) {
	if w.options.DrainLimit > 0 {
		until = since.Add(w.options.DrainLimit)
	}
	if since, is := w.unreachable(e); is && !failedOpen {
		until = incremental.Earlier(until, w.options.resetAt(since))
	}
	return until
}
