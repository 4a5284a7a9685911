package forwarding

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/view"
)

// choose returns the candidates of a list that take new connections. Endpoints on unreachable nodes are excluded first,
// before conditions, hints and checks. So each fallback takes effect at once: endpoints of another zone, or terminating
// ones that still serve. The list fails open: if no remaining endpoint is ready, or terminating and serving, it chooses
// as if every node was reachable. It does not fail open if that would choose nothing either. A new endpoint that is
// ready counts, checked or not. Each list fails open independently: one port of a Service may while another does not.
func (w *planning) choose(key ListKey, from candidates) (chosen candidates, failedOpen bool) {
	left := w.reachable(from)
	if chosen = w.chooseOf(key, from, left); len(chosen) > 0 || len(left) == len(from) {
		return chosen, false
	}
	chosen = w.chooseOf(key, from, from)
	return chosen, len(chosen) > 0
}

// chooseOf returns the candidates among some that take new connections: the ready ones that the topology hints allow,
// and if there is none, the terminating ones that still serve. A local list has only endpoints of
// this node. It and the list of slots ignore hints. While all of these are new and refuse connections, other ready ones
// replace them, or else terminating ones. It returns none only if none is ready or serves.
func (w *planning) chooseOf(key ListKey, from, some candidates) candidates {
	ready, usable := candidates{}, candidates{}
	for at, e := range some {
		switch {
		case key.Local && !w.isLocal(e):
		case e.Ready:
			ready[at] = e
		case e.Usable():
			usable[at] = e
		}
	}
	fresh := w.newcomers(key, from, ready)
	if len(ready) == 0 {
		return usable
	}
	known := minus(ready, fresh)
	if !key.Local && !key.Slots {
		w.hinted(ready)
	}
	if len(known)+len(usable) == 0 {
		return ready // no alternative: a check would change nothing
	}
	for at := range ready {
		if since, is := fresh[at]; is {
			w.check(at, since)
		}
	}
	w.age(fresh)
	for _, chosen := range []map[netip.AddrPort]*view.Endpoint{minus(ready, fresh), known} {
		if len(chosen) > 0 {
			return chosen
		}
	}
	return usable
}

// hinted keeps the ready endpoints with a hint for this node, or else for its zone. A kind of hint counts only if every
// endpoint has one and at least one matches.
func (w *planning) hinted(ready map[netip.AddrPort]*view.Endpoint) {
	zone := w.node.Zone()
	for _, hint := range []func(*view.Endpoint) (given, here bool){
		func(e *view.Endpoint) (bool, bool) {
			return len(e.ForNodes) > 0, slices.Contains(e.ForNodes, w.name)
		},
		func(e *view.Endpoint) (bool, bool) {
			return len(e.ForZones) > 0, zone != "" && slices.Contains(e.ForZones, zone)
		},
	} {
		all, any := true, false
		for _, e := range ready {
			given, here := hint(e)
			all, any = all && given, any || here
		}
		if !all || !any {
			continue
		}
		for at, e := range ready {
			if _, here := hint(e); !here {
				delete(ready, at)
			}
		}
		return
	}
}
