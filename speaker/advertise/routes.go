package advertise

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Withdraw withdraws unwanted routes and peers. It precedes every other change.
func (b *BGP) Withdraw(todo *Work) {
	if !b.begun {
		return
	}
	change := routes.Change{RouterID: b.in.Desired.BGP.RouterID, NodeDecommissioning: b.in.Desired.BGP.NodeDecommissioning, Peers: map[string]*routes.Peer{}, Routes: map[netip.Prefix]routes.Route{}}
	for prefix := range todo.Routes {
		want, have := b.in.Desired.BGP.Routes[prefix], b.routes[prefix]
		left := routes.Route{}
		for peer, announced := range have {
			if has(want, peer) {
				left[peer] = announced
			}
		}
		switch {
		case len(left) == len(have):
		case len(left) == 0:
			change.Routes[prefix] = nil
		default:
			change.Routes[prefix] = left
		}
	}
	for peer := range todo.Peers {
		if has(b.peers, peer) && !has(b.in.Desired.BGP.Peers, peer) {
			change.Peers[peer] = nil
		}
	}
	b.publish(change, todo)
}

// AnnounceReady announces the routes that the node already forwards before the work is done, so that they do not wait
// for it.
func (b *BGP) AnnounceReady(todo *Work, ready func(netip.Addr) bool) {
	if b.begun && len(todo.Peers)+len(todo.Routes) > 0 {
		b.route(todo, ready)
	}
}

// AnnounceAll announces the remaining routes, after the possible work is programmed and failed parts are out of the
// plan. The first call publishes the full state; until then the routes of an earlier process stay.
func (b *BGP) AnnounceAll(todo *Work, observed bool) {
	if b.begun || b.MayBegin(observed) {
		b.route(todo, func(netip.Addr) bool { return true })
	}
}

// route publishes the peers of the work, and its prefixes if all of their addresses may be announced.
func (b *BGP) route(todo *Work, may func(addr netip.Addr) bool) {
	want := b.in.Desired.BGP
	change := routes.Change{Full: !b.begun, RouterID: want.RouterID, NodeDecommissioning: want.NodeDecommissioning,
		Peers: map[string]*routes.Peer{}, Routes: map[netip.Prefix]routes.Route{}}
	peers, prefixes := todo.Peers, todo.Routes
	if change.Full {
		peers, prefixes = names(want.Peers, struct{}{}), names(want.Routes, view.Announced)
	}
	for name := range peers {
		if peer, wanted := want.Peers[name]; wanted && b.peers[name] != peer {
			change.Peers[name] = &peer
		}
	}
	for prefix := range prefixes {
		if route, wanted := want.Routes[prefix]; wanted && !maps.Equal(route, b.routes[prefix]) && b.mayRoute(prefix, may) && b.canRoute(prefix, prefixes[prefix]) {
			change.Routes[prefix] = route
		}
	}
	b.publish(change, todo)
}

// MayBegin reports whether to publish the full state now: the state of the node and the Node object must be known.
func (b *BGP) MayBegin(observed bool) bool {
	return b.cfg.Daemon != nil && !b.begun && observed && b.in.NodeListed
}

func names[K comparable, V, W any](m map[K]V, value W) map[K]W {
	out := make(map[K]W, len(m))
	for key := range m {
		out[key] = value
	}
	return out
}

// mayRoute reports whether all addresses behind a prefix may be announced.
func (b *BGP) mayRoute(prefix netip.Prefix, may func(addr netip.Addr) bool) bool {
	if prefix.IsSingleIP() {
		return may(prefix.Addr())
	}
	for addr := range b.in.Desired.Under[prefix] {
		if !may(addr) {
			return false
		}
	}
	return true
}

// IsRouted reports whether a prefix that contains an address is announced by BGP.
func (b *BGP) IsRouted(addr netip.Addr) bool {
	return slices.ContainsFunc(b.in.Desired.Routed[addr].Prefixes, func(p netip.Prefix) bool { return has(b.routes, p) })
}

// publish publishes a change, if there is one, and logs it.
func (b *BGP) publish(change routes.Change, todo *Work) {
	if !change.Full && !todo.Other && len(change.Peers)+len(change.Routes) == 0 {
		return
	}
	todo.Other, b.begun = false, true
	b.cfg.Daemon.Set(change)
	if change.Full {
		b.cfg.Log.Info("publish full BGP state", "router id", change.RouterID, "peers", len(change.Peers), "routes", len(change.Routes))
	}
	for _, name := range slices.Sorted(maps.Keys(change.Peers)) {
		if peer := change.Peers[name]; peer == nil {
			delete(b.peers, name)
			b.cfg.Record(slog.LevelInfo, "delete peer", "peer", name, "reason", b.in.Reason)
		} else {
			b.peers[name] = *peer
			b.cfg.Record(slog.LevelInfo, "set peer", "peer", name, "address", peer.Address, "reason", b.in.Reason)
		}
	}
	for _, prefix := range slices.SortedFunc(maps.Keys(change.Routes), netip.Prefix.Compare) {
		b.recordRoute(prefix, change.Routes[prefix], todo.Routes[prefix], change.Full)
	}
}

// recordRoute logs and counts a published route. An earlier process announced and logged most routes of the first
// change.
func (b *BGP) recordRoute(prefix netip.Prefix, route routes.Route, why view.Reason, first bool) {
	before := b.routes[prefix]
	if len(route) > 0 {
		b.routes[prefix] = route
	} else {
		delete(b.routes, prefix)
	}
	action, peers := "change route", route
	switch {
	case first:
		b.cfg.Log.Debug("announce route", "prefix", prefix, "peers", peersOf(route), "reason", view.Restored)
		return
	case len(route) == 0:
		action, peers = "withdraw route", before
	case len(before) == 0:
		action = "announce route"
	}
	b.cfg.Metrics.changes.WithLabelValues(strings.TrimSuffix(action, " route"), string(why)).Inc()
	b.cfg.Record(slog.LevelInfo, action, "prefix", prefix, "peers", peersOf(peers), "reason", why)
}

func peersOf(r routes.Route) string { return strings.Join(slices.Sorted(maps.Keys(r)), " ") }
