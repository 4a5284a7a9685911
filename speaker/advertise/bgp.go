package advertise

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// BGPConfig configures a BGP.
type BGPConfig struct {
	// Daemon is the BGP daemon, nil without BGP.
	Daemon Daemon
	// Blackholes may be nil: then no blackhole route is made.
	Blackholes Blackholes
	Metrics    *Metrics
	Log        *slog.Logger
	// Record receives each change, with the attributes of its log line.
	Record func(level slog.Level, action string, attrs ...any)
}

// BGPInputs are the inputs of one reconcile.
type BGPInputs struct {
	Desired *plan.Desired
	// Reason of the changes, for the log.
	Reason view.Reason
	// NodeListed is set if the Node object of this node is known.
	NodeListed bool
}

// Work names the parts of the published BGP state that may differ from the plan.
type Work struct {
	Peers map[string]struct{}
	// Routes have the reason of their change.
	Routes map[netip.Prefix]view.Reason
	// Other is set if other data of the BGP daemon changed.
	Other bool
}

// NewWork returns empty work.
func NewWork() *Work {
	return &Work{Peers: map[string]struct{}{}, Routes: map[netip.Prefix]view.Reason{}}
}

// Empty reports whether there is nothing to do.
func (w *Work) Empty() bool { return !w.Other && len(w.Peers)+len(w.Routes) == 0 }

// Add adds the work of x.
func (w *Work) Add(x *Work) {
	w.Other = w.Other || x.Other
	maps.Copy(w.Peers, x.Peers)
	maps.Copy(w.Routes, x.Routes)
}

// AddChanged adds the changes of a plan.
func (w *Work) AddChanged(c *plan.Changed) {
	maps.Copy(w.Peers, c.Peers)
	maps.Copy(w.Routes, c.Routes)
	w.Other = w.Other || c.RouterID || c.NodeDecommissioning
}

// BGP is the state published to the BGP daemon, and the blackhole routes. One goroutine owns it.
type BGP struct {
	cfg BGPConfig
	in  BGPInputs
	// begun is set once the full state was published; until then ironlb-bgpd keeps the state of an earlier process.
	begun  bool
	peers  map[string]routes.Peer
	routes map[netip.Prefix]routes.Route
	// sessions are as last observed.
	sessions map[string]routes.Session
	// withoutBFD is since when BFD has not been up, by peer. lateAt is when the next session exceeds its time without
	// BFD.
	withoutBFD map[string]time.Time
	lateAt     time.Time
	// blackholes are the prefixes with a blackhole route. They include those of an earlier process once
	// blackholesListed is set.
	blackholes       map[netip.Prefix]struct{}
	blackholesListed bool
	// failed are the routes that could not be published, or their blackholes deleted, with errs.
	failed map[netip.Prefix]view.Reason
	errs   []error
}

// NewBGP returns a BGP that has published nothing yet.
func NewBGP(cfg BGPConfig) *BGP {
	return &BGP{cfg: cfg, peers: map[string]routes.Peer{}, routes: map[netip.Prefix]routes.Route{}, withoutBFD: map[string]time.Time{},
		failed: map[netip.Prefix]view.Reason{}}
}

// Update takes the inputs of a reconcile.
func (b *BGP) Update(in BGPInputs) { b.in = in }

// Begun reports whether the full state was published, or there is no BGP daemon.
func (b *BGP) Begun() bool { return b.begun || b.cfg.Daemon == nil }

// Sessions returns the sessions as last observed. The caller must not modify them.
func (b *BGP) Sessions() map[string]routes.Session { return b.sessions }

// LateAt returns when the next session exceeds its time without BFD, zero for none.
func (b *BGP) LateAt() time.Time { return b.lateAt }

// TakeFailed moves the failed routes into the work and clears their errors.
func (b *BGP) TakeFailed(todo *Work) {
	maps.Copy(todo.Routes, b.failed)
	b.failed, b.errs = map[netip.Prefix]view.Reason{}, nil
}

// Settled reports whether there is nothing to retry and no error to clear.
func (b *BGP) Settled() bool { return len(b.failed)+len(b.errs) == 0 }

// Errors returns the errors since the last TakeFailed.
func (b *BGP) Errors() []error { return b.errs }

func (b *BGP) fail(err error) {
	if err != nil {
		b.errs = append(b.errs, err)
	}
}

func has[K comparable, V any](m map[K]V, key K) bool { _, ok := m[key]; return ok }

// Announcer answers ARP and NDP for addresses.
type Announcer interface {
	// Announce replaces the full set and returns the interfaces on which each address is announced. An address that is
	// still being probed is absent. The end of its probe triggers the loop.
	Announce(map[netip.Addr]ownership.Announcement) (map[netip.Addr][]string, error)
	// Conflicts are the addresses for which another host answers: of the set, or removed from it less than ten minutes
	// ago. A change triggers the loop.
	Conflicts() map[netip.Addr]view.Conflict
	// SetPeers sets the hardware addresses that belong to members, by node.
	SetPeers(macs map[[6]byte]string)
}

// Daemon is the BGP daemon, which announces addresses to routers.
type Daemon interface {
	// Set publishes a change; the first change is a full state. It does not block. The last state outlives this
	// process.
	Set(routes.Change)
	// Sessions returns the state of the sessions, by the name of the peer: nil until the daemon has reported. A session
	// may be absent until it starts. A change triggers the loop.
	Sessions() map[string]routes.Session
}

// Blackholes are routes that drop packets for unallocated addresses of a prefix.
type Blackholes interface {
	// Blackholes returns the owned blackholes, including those of an earlier process.
	Blackholes() (map[netip.Prefix]struct{}, error)
	// AddBlackhole reports whether the blackhole was added.
	AddBlackhole(netip.Prefix) (bool, error)
	// RemoveBlackhole reports whether the blackhole existed.
	RemoveBlackhole(netip.Prefix) (bool, error)
}

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
