// Package speaker is the reconcile loop on each node. It makes the kernel and the network match the plan.
//
// It is the sole owner of the node's state: one goroutine observes, plans, compares and applies. Events trigger it, and
// it resyncs twice a second to restore what another program flushed or edited.
package speaker

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
)

// Config of a Speaker. The fields Progress, BGP, Nodes, Retained, Reach, MACs and Destroyed are optional.
type Config struct {
	NodeName  string
	Plan      plan.Options
	Log       *slog.Logger
	Kick      *Kick
	Source    Source
	Node      Node
	Announcer Announcer
	Detector  Detector
	Reporter  Reporter
	Metrics   *Metrics
	Progress  Progress
	// BGP, if set, announces addresses to routers.
	BGP BGP
	// Nodes, if set, publishes the status of this node.
	Nodes NodeReporter
	// Retained are the addresses for which the kernel answers since the end of an earlier process.
	Retained map[netip.Addr]struct{}
	// Reach, if set, finds unreachable nodes.
	Reach Reach
	// MACs, if set, are the hardware addresses of the other nodes.
	MACs func() map[[6]byte]string
	// Destroyed, if set, is called when owned virtual servers are missing or changed. It must not block.
	Destroyed func()
}

// How often the loop resyncs, and how soon it retries after an error.
const (
	// auditEvery is the interval of observations, so that destroyed state is restored within two seconds.
	auditEvery = 500 * time.Millisecond
	retryFirst = 250 * time.Millisecond
	retryMost  = 10 * time.Second
	// restShare bounds the cost of lists: after a list that took d, the next one waits restShare times d. The maximum
	// depends on what else would reveal a change. A failed reconcile backs off likewise, up to retryMost.
	restShare = 20
	// relistLeast and relistMost apply to lists of real servers, which cost one request per virtual server.
	// virtualsMost leaves time to restore an edit within two seconds.
	relistLeast  = 900 * time.Millisecond
	relistMost   = 10 * time.Second
	virtualsMost = 1400 * time.Millisecond
	// addressesEvery is the interval of address lists without a Look.
	addressesEvery = 10 * time.Second
)

// errNotSynced is the reason before the first plan.
var errNotSynced = errors.New("waiting for the first list of Services, EndpointSlices, Nodes and VirtualIPs from the API server")

// Speaker is the reconcile loop.
type Speaker struct {
	cfg     Config
	planner *plan.Planner
	view    *plan.View    // of the last plan
	desired *plan.Desired // nil before the first plan
	reason  string        // of the changes of this reconcile, for the log
	ipv6    bool          // the plan has IPv6 virtual servers

	// known is the state of the node after the last reconcile, nil if that is uncertain. audited is the time of the
	// last observation.
	known   *state
	audited time.Time
	// lastFilter outlives known: it records what IronLB owns.
	lastFilter ipvs.Filter
	// remains is the adopted state that is not removed yet, nil for none.
	remains  *remains
	cleaning cleaning

	// failed is the work that failed with errs and is retried at retry.
	failed   *work
	errs     []error
	failures int
	reported int // number of errs when retry was set
	retry    time.Time

	// target is the desired set of announcements, announced the last published one, held the interfaces of announced
	// addresses.
	target    map[netip.Addr]plan.Announcement
	announced map[netip.Addr]plan.Announcement
	held      map[netip.Addr][]string
	// said is the last published state; mustSay forces another publication even if it is unchanged.
	said    plan.Word
	mustSay bool
	// unable are the addresses that this node cannot answer for, fit the ones that it forwards, conflicts the ones for
	// which another host answers.
	unable    map[netip.Addr]plan.Reason
	fit       map[netip.Addr]struct{}
	conflicts map[netip.Addr]plan.Conflict
	// macs are the hardware addresses of the other nodes, as last passed to the announcer.
	macs map[[6]byte]string
	bgp  bgpState
	// reach is the reachability of other nodes.
	reach reachState
	// blackholes are the prefixes with a blackhole route. They include those of an earlier process once
	// blackholesListed is set.
	blackholes       map[netip.Prefix]struct{}
	blackholesListed bool
	// ending is set by Leave. leaving is set once this node hands over. leaveBy is the deadline for successors.
	ending, leaving atomic.Bool
	leaveBy         time.Time
	retention       retention

	ports    map[pools.ServiceKey]plan.HealthPort
	statuses map[string]plan.Status
	moved    map[string]move
	// rivals are, by VirtualIP, the unreachable nodes that seem to announce it as well. split are the logged ones.
	rivals   map[string]string
	split    map[string]struct{}
	vips     *tally[string]
	services *tally[pools.ServiceKey]
	// refused are the refused addresses of Services, as last reported.
	refused  map[pools.ServiceKey]map[netip.Addr]pools.Refusal
	refusals *tally[refusedAddress]

	// began is the start of this reconcile. changes counts all changes so far.
	began   time.Time
	changes int

	lastError string
	mu        sync.Mutex
	health    Health
}

// New returns a Speaker that has not observed anything yet.
func New(cfg Config) *Speaker {
	cfg.Plan.BGP = cfg.BGP != nil
	return &Speaker{
		cfg:      cfg,
		planner:  plan.NewPlanner(cfg.Plan),
		cleaning: cleaning{waiting: map[ipvs.Key]struct{}{}},
		failed:   newWork(),
		target:   map[netip.Addr]plan.Announcement{},
		said:     plan.Word{Claims: map[string]plan.Claim{}},
		unable:   map[netip.Addr]plan.Reason{},
		fit:      map[netip.Addr]struct{}{},
		ports:    map[pools.ServiceKey]plan.HealthPort{},
		statuses: map[string]plan.Status{},
		moved:    map[string]move{},
		rivals:   map[string]string{},
		split:    map[string]struct{}{},
		vips:     newTally[string](cfg.Metrics.vips),
		services: newTally[pools.ServiceKey](cfg.Metrics.services),
		refused:  map[pools.ServiceKey]map[netip.Addr]pools.Refusal{},
		refusals: newTally[refusedAddress](cfg.Metrics.refused),
		bgp:      newBGPState(cfg.Metrics),
		health:   Health{Reason: errNotSynced.Error(), Round: time.Now()},
	}
}

// Run reconciles until the context ends, or after Leave until the addresses of this node are handed over or left to the
// kernel. It leaves all other state as it is: the kernel continues to forward, and the next process adopts it.
func (s *Speaker) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.cfg.Kick.wake:
		case <-timer.C:
		}
		start := time.Now()
		ending := s.ending.Load()
		err := s.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.note(err, time.Since(start))
		if ending && !s.leaving.Load() {
			if s.retain(time.Now()) { // decided on the state of this reconcile
				return nil
			}
			s.leaving.Store(true)
			s.cfg.Kick.Now()
			continue
		}
		if s.left(time.Now()) {
			s.goodbye()
			return nil
		}
		timer.Reset(s.pause())
	}
}

// pause returns the time until the next reconcile without a trigger: the next audit, a retry, or a planned time.
func (s *Speaker) pause() time.Duration {
	next := s.audited.Add(auditEvery)
	if !s.retry.IsZero() && (s.known == nil || s.retry.Before(next)) {
		next = s.retry
	}
	if wake := s.planner.Wake(); !wake.IsZero() && wake.Before(next) {
		next = wake
	}
	if due, waits := s.cleaning.wake(); waits && due.Before(next) {
		next = due
	}
	if late := s.bgp.lateAt; late.After(s.began) && late.Before(next) { // an earlier lateAt was handled, or could not be
		next = late
	}
	if !s.leaveBy.IsZero() && s.leaveBy.Before(next) {
		next = s.leaveBy
	}
	return time.Until(next)
}

// note records the outcome of a reconcile. An error is logged when it appears or changes, not on each occurrence.
func (s *Speaker) note(err error, took time.Duration) {
	s.cfg.Metrics.round(err, took)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != s.lastError && !errors.Is(err, errNotSynced) {
		if err != nil {
			s.cfg.Log.Error("the node is not as planned; trying again", "error", err)
		} else if s.lastError != "" {
			s.cfg.Log.Info("the node is as planned again")
		}
		s.lastError = text
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = Health{Ready: err == nil, Reason: text, Round: time.Now()}
}
