package advertise

import (
	"log/slog"
	"maps"
	"net/netip"
	"time"

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
