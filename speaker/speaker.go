// Package speaker is the reconcile loop on each node. It makes the kernel and the network match the plan.
//
// It is the sole owner of the node's state: one goroutine observes, plans, compares and applies. Events trigger it, and
// it audits the node once a second to restore what another program flushed or edited.
package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironlb/ironlb/loglines"
	"github.com/ironlb/ironlb/speaker/advertise"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/status"
	"github.com/ironlb/ironlb/speaker/view"
)

// Config of a Speaker. The fields Progress, BGP, Nodes, Retained, Reach, MACs, Destroyed and Traffic are
// optional.
type Config struct {
	NodeName  string
	Plan      plan.Options
	Log       *slog.Logger
	Trigger   *Trigger
	Source    Source
	Node      Node
	Announcer advertise.Announcer
	Detector  Detector
	Reporter  status.Reporter
	Metrics   *Metrics
	Progress  Progress
	// BGP, if set, announces addresses to routers.
	BGP advertise.Daemon
	// Nodes, if set, publishes the status of this node.
	Nodes status.NodeReporter
	// Retained are the addresses for which the kernel answers since the end of an earlier process.
	Retained map[netip.Addr]struct{}
	// Reach, if set, finds unreachable nodes.
	Reach Reach
	// MACs, if set, are the hardware addresses of the other nodes.
	MACs func() map[[6]byte]string
	// Destroyed, if set, is called when owned virtual servers are missing or changed. It must not block.
	Destroyed func()
	// Traffic, if set, exports the counters of the planned virtual servers.
	Traffic Traffic
}

// auditEvery is the interval of observations, so that what a flush destroyed is restored within two seconds.
const auditEvery = time.Second

// errNotSynced is the reason before the first plan.
var errNotSynced = errors.New("waiting for the first list of Services, EndpointSlices, Nodes and VirtualIPs from the API server")

// Speaker is the reconcile loop.
type Speaker struct {
	cfg     Config
	planner *plan.Planner
	view    *view.View    // of the last plan
	desired *plan.Desired // nil before the first plan
	reason  view.Reason   // of the changes of this reconcile, for the log

	dataplane *dataplane.DataPlane
	// audited is the time of the last observation of the node.
	audited time.Time

	retries retries

	l2     *advertise.L2
	bgp    *advertise.BGP
	status *status.Status
	// published is the last published state; mustPublish forces another publication even if it is unchanged.
	published   view.LocalState
	mustPublish bool
	// notDirect is why this node cannot be forwarded to directly, as last observed; empty if it can. noTunnel is why it
	// cannot use tunnels, missingReturn why it has no return route.
	notDirect, noTunnel view.Reason
	missingReturn       missingReturn
	// agreement compares the slots of the nodes. slotsDiffer are the nodes whose slots differ for long, sorted; the slice
	// is immutable.
	agreement   agreement
	slotsDiffer []string
	// unable are the addresses that this node cannot answer for, conflicts the ones for which another host answers.
	unable    map[netip.Addr]view.Reason
	conflicts map[netip.Addr]view.Conflict
	// macs are the hardware addresses of the other nodes, as last passed to the announcer.
	macs map[[6]byte]string
	// reach is the reachability of other nodes.
	reach reachState
	// ending is set by Leave. leaving is set once this node hands over. leaveBy is the deadline for successors.
	ending, leaving atomic.Bool
	leaveBy         time.Time
	retention       retention

	// began is the start of this reconcile, lines are its lines. changes counts all changes so far.
	began   time.Time
	lines   *loglines.Lines
	changes int

	// unprogrammed are the planned changes that are not programmed yet.
	unprogrammed []plannedChange

	// dumps are requests of Dump.
	dumps chan chan Dump

	// lastError is the last logged error. uncounted is set while connections of draining endpoints cannot be counted.
	lastError string
	uncounted bool
	mu        sync.Mutex
	health    Health
}

// New returns a Speaker that has not observed anything yet.
func New(cfg Config) *Speaker {
	cfg.Plan.BGP = cfg.BGP != nil
	s := &Speaker{
		cfg:       cfg,
		planner:   plan.NewPlanner(cfg.Plan),
		retries:   retries{work: newWork()},
		published: view.LocalState{Claims: map[string]view.Claim{}}, mustPublish: true,
		lines:  loglines.New(cfg.Log),
		unable: map[netip.Addr]view.Reason{}, dumps: make(chan chan Dump),
		health: Health{Reason: errNotSynced.Error(), Reconciled: time.Now()},
	}
	s.dataplane = dataplane.New(dataplane.Config{Record: s.log, Destroyed: cfg.Destroyed}, cfg.Node.Drivers)
	s.l2 = advertise.NewL2(advertise.L2Config{Announcer: cfg.Announcer, Node: cfg.NodeName, Record: s.log, Leaving: s.leaving.Load})
	s.bgp = advertise.NewBGP(advertise.BGPConfig{Daemon: cfg.BGP, Blackholes: cfg.Node.Blackholes, Metrics: cfg.Metrics.bgp, Log: cfg.Log, Record: s.log})
	s.status = status.New(status.Config{Node: cfg.NodeName, Log: cfg.Log, Line: s.lines.Add, Metrics: cfg.Metrics.status, Reporter: cfg.Reporter, Nodes: cfg.Nodes})
	return s
}

// Run reconciles until the context ends, or after Leave until the addresses of this node are handed over or left to the
// kernel. It leaves all other state as it is: the kernel continues to forward, and the next process adopts it.
func (s *Speaker) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer s.lines.Flush()
	for {
		select {
		case <-ctx.Done():
			return nil
		case answer := <-s.dumps:
			answer <- s.dump()
			continue
		case <-s.cfg.Trigger.wake:
		case <-timer.C:
		}
		start := time.Now()
		ending := s.ending.Load()
		err := s.reconcile(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.recordOutcome(err, time.Since(start))
		s.endDrains()
		if ending && !s.leaving.Load() {
			if s.retain(time.Now()) { // decided on the state of this reconcile
				return nil
			}
			s.leaving.Store(true)
			s.cfg.Trigger.Now()
			continue
		}
		if s.handoverDone(time.Now()) {
			s.stopAnnouncing()
			return nil
		}
		timer.Reset(s.pause())
	}
}

// pause returns the time until the next reconcile without a trigger: the next audit, a retry, or a planned time.
func (s *Speaker) pause() time.Duration {
	next := s.audited.Add(auditEvery)
	if !s.retries.at.IsZero() && (!s.dataplane.Known() || s.retries.at.Before(next)) {
		next = s.retries.at
	}
	if wake := s.planner.Wake(); !wake.IsZero() && wake.Before(next) {
		next = wake
	}
	if due, waits := s.dataplane.Wake(); waits && due.Before(next) {
		next = due
	}
	if late := s.bgp.LateAt(); late.After(s.began) && late.Before(next) { // an earlier one was handled, or could not be
		next = late
	}
	if !s.leaveBy.IsZero() && s.leaveBy.Before(next) {
		next = s.leaveBy
	}
	return time.Until(next)
}

// endDrains ends the draining endpoints without a connection. If counting fails, they drain until their limit.
func (s *Speaker) endDrains() {
	now := time.Now()
	if !s.dataplane.DrainsDue(now) {
		return
	}
	ended, err := s.dataplane.EndDrains(now)
	if ended {
		s.cfg.Trigger.Now()
	}
	if err != nil {
		s.cfg.Metrics.drains.Inc()
		if !s.uncounted {
			s.cfg.Log.Warn("failed to count the connections of draining endpoints", "error", err)
		}
	}
	s.uncounted = err != nil
}

// recordOutcome records the outcome of a reconcile. An error is logged when it appears or changes, not on each
// occurrence.
func (s *Speaker) recordOutcome(err error, took time.Duration) {
	s.cfg.Metrics.reconciled(err, took)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != s.lastError && !errors.Is(err, errNotSynced) {
		if err != nil {
			s.cfg.Log.Error("reconcile failed, retrying", "error", err)
		} else if s.lastError != "" {
			s.cfg.Log.Info("reconcile succeeded again")
		}
		s.lastError = text
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = Health{Ready: err == nil, Reason: text, Reconciled: time.Now()}
}

// Trigger triggers the loop.
type Trigger struct {
	wake   chan struct{}
	resync atomic.Bool
}

// NewTrigger returns a Trigger that keeps at most one pending trigger.
func NewTrigger() *Trigger { return &Trigger{wake: make(chan struct{}, 1)} }

// Now makes the loop plan again if the View changed. It never blocks.
func (k *Trigger) Now() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Resync makes the loop observe the node at once, as the audit does once a second.
func (k *Trigger) Resync() {
	k.resync.Store(true)
	k.Now()
}

// Health is the outcome of the last reconcile.
type Health struct {
	Ready  bool
	Reason string
	// Reconciled is when the last reconcile ended.
	Reconciled time.Time
}

// stallTimeout is how long a reconcile may take before the loop counts as stalled.
const stallTimeout = time.Minute

// Health returns the outcome of the last reconcile.
func (s *Speaker) Health() Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health
}

// Readyz answers 200 while the node is as planned, and 503 with the reason otherwise.
func (s *Speaker) Readyz(w http.ResponseWriter, _ *http.Request) {
	h := s.Health()
	if !h.Ready {
		http.Error(w, h.Reason, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// Healthz answers 503 while the loop is stalled. Faults that the loop cannot repair do not count: a restart would not
// repair them either.
func (s *Speaker) Healthz(w http.ResponseWriter, _ *http.Request) {
	if age := time.Since(s.Health().Reconciled); age > stallTimeout {
		http.Error(w, fmt.Sprintf("reconcile loop stalled for %v", age.Round(time.Second)), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
