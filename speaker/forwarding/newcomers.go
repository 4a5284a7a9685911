package forwarding

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// NewFor is how long an endpoint counts as new after it became ready, and so the maximum duration of its check.
const NewFor = 5 * time.Second

// newcomers returns the new endpoints among the ready ones of a list, and when each became ready. A Pod without a
// readinessProbe is Ready before its program listens and briefly refuses connections; clients of kube-proxy therefore
// see errors in rolling updates. An endpoint that already takes connections, because there was no other, is not new to
// its list.
func (w *planning) newcomers(key ListKey, from, ready map[netip.AddrPort]*view.Endpoint) map[netip.AddrPort]time.Time {
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

// readySince returns when the ready candidates became ready. The zero time means not new: the check has a result, the
// time is over, or it was ready in the first plan of the Service, since when is unknown. Only TCP endpoints can be new,
// because only TCP refuses connections.
func (w *planning) readySince(key ListKey, from map[netip.AddrPort]*view.Endpoint) map[netip.AddrPort]time.Time {
	if !w.options.EndpointChecks || key.Protocol != ipvs.TCP {
		return nil
	}
	key.Local, key.Slots = false, false
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

// check requests the check of a new endpoint. Its result counts from the next plan on, so that all lists of one plan
// use the same results.
func (w *planning) check(at netip.AddrPort, since time.Time) {
	c := endpointCheck(at)
	w.checks[c] = struct{}{}
	if _, found := w.view.Checks[c]; found {
		w.wake(w.now)
	}
	w.wake(since.Add(NewFor))
}

// answered reports whether a check requested by the last plan of the Service has a result.
func (w *planning) answered(at netip.AddrPort) bool {
	c := endpointCheck(at)
	_, found := w.view.Checks[c]
	if !found {
		return false
	}
	_, asked := slices.BinarySearchFunc(w.asked, c, view.Check.Compare)
	return asked
}

// age has the Service planned again when the first of these endpoints is no longer new.
func (w *planning) age(since map[netip.AddrPort]time.Time) {
	for _, at := range since {
		if !at.IsZero() {
			w.wake(at.Add(NewFor))
		}
	}
}

func endpointCheck(at netip.AddrPort) view.Check { return view.Check{Addr: at.Addr(), Port: at.Port()} }
