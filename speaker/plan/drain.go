package plan

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// listKey names one list of real servers of a Service. All virtual servers of a port that have the same family and the same
// policy share one.
type listKey struct {
	name     string
	protocol ipvs.Protocol
	v4       bool
	local    bool
}

// list is a list of real servers that are endpoints.
type list struct {
	servers map[netip.AddrPort]ipvs.RealServer
	// chosen is how many of them take new connections.
	chosen int
	// failedOpen is set if they are chosen as if no node was unreachable, because otherwise none would be.
	failedOpen bool
	// since is when an endpoint that is not chosen, but was, or terminates, was first seen so.
	since map[netip.AddrPort]time.Time
}

// list returns the real servers of a port.
func (w *planning) list(port Port, v4, local bool) list {
	key := listKey{name: port.Name, protocol: port.Protocol, v4: v4, local: local}
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

// drain keeps those TCP endpoints with weight 0 that are not chosen but still listed: one that terminates, so that a
// new process finds it too, and one that was chosen before and is not ready any more, or that the hints gave to
// others, or whose node is unreachable; in the first plan of a Service also one that an earlier process may have left
// out. Their connections go on, at most for Options.DrainLimit, and at most for Options.ResetAfter after their node
// became unreachable; one that leaves its slice is gone at once (ipvs.md 4.5). UDP and SCTP do not drain (4.1).
func (w *planning) drain(out *list, before list, from map[netip.AddrPort]*Endpoint, local bool) {
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
		out.since[at] = since // kept beyond the limit, or it would begin again
		if until := w.drainsUntil(e, since, out.failedOpen); !until.IsZero() {
			if !w.now.Before(until) {
				continue
			}
			w.wake(until)
		}
		out.servers[at] = drained
	}
}

// wasLeftOut reports whether an earlier process may have left an endpoint out because its node was unreachable.
func (w *planning) wasLeftOut(e *Endpoint, failedOpen bool) bool {
	_, unreachable := w.unreachable(e)
	return w.before == nil && unreachable && e.Ready && !failedOpen
}

// drainsUntil returns when an endpoint that drains since then is no real server any more, zero for never. In a list
// that failed open unreachable nodes count as reachable ones.
func (w *planning) drainsUntil(e *Endpoint, since time.Time, failedOpen bool) (until time.Time) {
	if w.options.DrainLimit > 0 {
		until = since.Add(w.options.DrainLimit)
	}
	if since, is := w.unreachable(e); is && !failedOpen {
		until = earlier(until, w.options.resetAt(since))
	}
	return until
}

// wake has the Service planned again at that time at the latest.
func (w *planning) wake(at time.Time) { w.out.wake = earlier(w.out.wake, at) }
