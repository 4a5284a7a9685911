package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// bgpState is the state published to the BGP daemon.
type bgpState struct {
	// begun is set once the full state was published; until then ironlb-bgpd keeps the state of an earlier process.
	begun bool
	// waits is set if an address may only be removed once the full state was published.
	waits  bool
	peers  map[string]plan.Peer
	routes map[netip.Prefix]plan.Route
	// sessions and prefs are as last reported; routed counts addresses by outcome.
	sessions map[string]plan.Session
	prefs    map[plan.LocalPrefs]int
	routed   *tally[netip.Addr]
	unserved unserved
	// unwatched is since when BFD has not been up, by peer. lateAt is when the next session exceeds its time without
	// BFD.
	unwatched map[string]time.Time
	lateAt    time.Time
}

func newBGPState(m *Metrics) bgpState {
	return bgpState{peers: map[string]plan.Peer{}, routes: map[netip.Prefix]plan.Route{}, unwatched: map[string]time.Time{}, routed: newTally[netip.Addr](m.bgp.addresses),
		unserved: unserved{of: map[netip.Addr]plan.Reason{}}}
}

// withdrawRoutes withdraws unwanted routes and peers. It precedes every other change.
func (s *Speaker) withdrawRoutes(todo *work) {
	if !s.bgp.begun {
		return
	}
	change := plan.BGPChange{RouterID: s.desired.BGP.RouterID, NodeGoes: s.desired.BGP.NodeGoes, Peers: map[string]*plan.Peer{}, Routes: map[netip.Prefix]plan.Route{}}
	for prefix := range todo.routes {
		want, have := s.desired.BGP.Routes[prefix], s.bgp.routes[prefix]
		left := plan.Route{}
		for peer, told := range have {
			if has(want, peer) {
				left[peer] = told
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
	for peer := range todo.peers {
		if has(s.bgp.peers, peer) && !has(s.desired.BGP.Peers, peer) {
			change.Peers[peer] = nil
		}
	}
	s.tellBGP(change, todo)
}

// routeReady announces the routes that the node already forwards before the work is done, so that they do not wait for
// it.
func (s *Speaker) routeReady(todo *work) {
	if s.bgp.begun && len(todo.peers)+len(todo.routes) > 0 {
		s.route(todo, s.readyAddress(todo))
	}
}

// routeAll announces the remaining routes, after the possible work is programmed and failed parts are out of the plan.
// The first call publishes the full state; until then the routes of an earlier process stay.
func (s *Speaker) routeAll(todo *work) {
	if s.bgp.begun || s.mayBeginBGP() {
		s.route(todo, func(netip.Addr) bool { return true })
	}
}

// route publishes the peers of the work, and its prefixes if all of their addresses may be announced.
func (s *Speaker) route(todo *work, may func(addr netip.Addr) bool) {
	want := s.desired.BGP
	change := plan.BGPChange{Whole: !s.bgp.begun, RouterID: want.RouterID, NodeGoes: want.NodeGoes,
		Peers: map[string]*plan.Peer{}, Routes: map[netip.Prefix]plan.Route{}}
	peers, routes := todo.peers, todo.routes
	if change.Whole {
		peers, routes = names(want.Peers, struct{}{}), names(want.Routes, plan.Announced)
	}
	for name := range peers {
		if peer, wanted := want.Peers[name]; wanted && s.bgp.peers[name] != peer {
			change.Peers[name] = &peer
		}
	}
	for prefix := range routes {
		if route, wanted := want.Routes[prefix]; wanted && !maps.Equal(route, s.bgp.routes[prefix]) && s.mayRoute(prefix, may) && s.canRoute(prefix, routes[prefix]) {
			change.Routes[prefix] = route
		}
	}
	s.tellBGP(change, todo)
}

// mayBeginBGP reports whether to publish the full state now. The state of the node and the Node object must be known,
// and the cluster state must come from the API server. A snapshot may be older than the state of an earlier process and
// has no passwords, so it is used only for a BGP daemon without state.
func (s *Speaker) mayBeginBGP() bool {
	if s.cfg.BGP == nil || s.bgp.begun || s.known == nil || !has(s.view.Nodes, s.cfg.Plan.Node) {
		return false
	}
	return !s.view.Stale || s.cfg.BGP.Blank()
}

func names[K comparable, V, W any](m map[K]V, value W) map[K]W {
	out := make(map[K]W, len(m))
	for key := range m {
		out[key] = value
	}
	return out
}

// mayRoute reports whether all addresses behind a prefix may be announced.
func (s *Speaker) mayRoute(prefix netip.Prefix, may func(addr netip.Addr) bool) bool {
	if prefix.IsSingleIP() {
		return may(prefix.Addr())
	}
	for addr := range s.desired.Under[prefix] {
		if !may(addr) {
			return false
		}
	}
	return true
}

// isRouted reports whether an address is announced by BGP.
func (s *Speaker) isRouted(addr netip.Addr) bool {
	return has(s.fit, addr) && slices.ContainsFunc(s.desired.Routed[addr].Prefixes, func(p netip.Prefix) bool { return has(s.bgp.routes, p) })
}

// mayBeRouted reports whether routers may still send packets to an address that no Service has: routes of an earlier
// process are withdrawn only with the first full state.
func (s *Speaker) mayBeRouted(addr netip.Addr) bool {
	s.bgp.waits = s.bgp.waits || s.cfg.BGP != nil && !s.bgp.begun
	return s.bgp.waits
}

// tellBGP publishes a change, if there is one, and logs it.
func (s *Speaker) tellBGP(change plan.BGPChange, todo *work) {
	if !change.Whole && !todo.speaker && len(change.Peers)+len(change.Routes) == 0 {
		return
	}
	todo.speaker, s.bgp.begun = false, true
	s.cfg.BGP.Set(change)
	if change.Whole {
		s.cfg.Log.Info("begin BGP", "router id", change.RouterID, "peers", len(change.Peers), "routes", len(change.Routes))
	}
	for _, name := range slices.Sorted(maps.Keys(change.Peers)) {
		if peer := change.Peers[name]; peer == nil {
			delete(s.bgp.peers, name)
			s.log("delete peer", "peer", name, "reason", s.reason)
		} else {
			s.bgp.peers[name] = *peer
			s.log("set peer", "peer", name, "address", peer.Address, "reason", s.reason)
		}
	}
	for _, prefix := range slices.SortedFunc(maps.Keys(change.Routes), netip.Prefix.Compare) {
		s.noteRoute(prefix, change.Routes[prefix], todo.routes[prefix], change.Whole)
	}
}

// noteRoute logs and counts a published route. An earlier process announced and logged most routes of the first change.
func (s *Speaker) noteRoute(prefix netip.Prefix, route plan.Route, why plan.Reason, first bool) {
	before := s.bgp.routes[prefix]
	if len(route) > 0 {
		s.bgp.routes[prefix] = route
	} else {
		delete(s.bgp.routes, prefix)
	}
	action, peers := "change route", route
	switch {
	case first:
		s.cfg.Log.Debug("announce route", "prefix", prefix, "peers", peersOf(route), "reason", restored)
		return
	case len(route) == 0:
		action, peers = "withdraw route", before
	case len(before) == 0:
		action = "announce route"
	}
	s.cfg.Metrics.bgp.changes.WithLabelValues(strings.TrimSuffix(action, " route"), string(why)).Inc()
	s.log(action, "prefix", prefix, "peers", peersOf(peers), "reason", why)
}

func peersOf(r plan.Route) string { return strings.Join(slices.Sorted(maps.Keys(r)), " ") }
