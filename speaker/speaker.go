// Package speaker is the loop on each node that makes the kernel and the network agree with the plan.
//
// It is the sole owner of the node's state: one goroutine observes, plans, compares and applies. It is kicked by events
// and looks by itself twice a second, so that what another program flushed or edited is restored.
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

// Config of a Speaker; every field but Progress, BGP, Nodes, Reach, MACs and Destroyed is needed.
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
	// BGP, if set, announces addresses.
	BGP BGP
	// Nodes, if set, is told how this node is.
	Nodes NodeReporter
	// Retained are the addresses for which the kernel answers since an earlier process has ended.
	Retained map[netip.Addr]struct{}
	// Reach, if set, finds unreachable nodes.
	Reach Reach
	// MACs, if set, are the hardware addresses of the other nodes.
	MACs func() map[[6]byte]string
	// Destroyed, if set, is called when virtual servers of ours are found missing or changed. It must not block.
	Destroyed func()
}

// How often the loop looks by itself, and how soon it tries again after an error.
const (
	// auditEvery is from one look at the node to the next, so that what others destroyed is back within two seconds.
	auditEvery = 500 * time.Millisecond
	retryFirst = 250 * time.Millisecond
	retryMost  = 10 * time.Second
	// restShare bounds the cost of what is listed: a list that took d is not repeated for restShare times d, up to a most
	// that depends on what else would tell of a change. A round that failed rests likewise, up to retryMost.
	restShare = 20
	// relistLeast and relistMost are for the real servers, which cost a request for each virtual server; virtualsMost leaves
	// time to restore what was edited within two seconds.
	relistLeast  = 900 * time.Millisecond
	relistMost   = 10 * time.Second
	virtualsMost = 1400 * time.Millisecond
	// addressesEvery is how often addresses are listed though no Look told of a change.
	addressesEvery = 10 * time.Second
)

// errNotSynced is the reason before the first plan.
var errNotSynced = errors.New("waiting for the first list of Services, EndpointSlices, Nodes and VirtualIPs from the API server")

// Speaker is the loop.
type Speaker struct {
	cfg     Config
	planner *plan.Planner
	view    *plan.View    // of the last plan
	desired *plan.Desired // nil before the first plan
	reason  string        // of the changes of this round, for the log
	ipv6    bool          // the plan has virtual servers of it

	// known is what the node held after the last round; nil if that is not certain. audited is when it was last looked at.
	known   *state
	audited time.Time
	// lastFilter outlives known: it is the record of what is ours.
	lastFilter ipvs.Filter
	// remains is what is not removed yet, nil for nothing.
	remains  *remains
	cleaning cleaning

	// failed is what could not be done, for the reasons errs, and is tried again at retry.
	failed   *work
	errs     []error
	failures int
	reported int // of errs, when retry was decided
	retry    time.Time

	// target is what the announcer should answer for, announced what it was last told, held where it really answers.
	target    map[netip.Addr]plan.Announcement
	announced map[netip.Addr]plan.Announcement
	held      map[netip.Addr][]string
	// said is what the others were told; mustSay that they must be told again although it is the same.
	said    plan.Word
	mustSay bool
	// unable are the addresses that this node cannot answer for, fit those that it forwards, conflicts those that another host
	// has.
	unable    map[netip.Addr]plan.Reason
	fit       map[netip.Addr]struct{}
	conflicts map[netip.Addr]plan.Conflict
	// macs are the hardware addresses of the other nodes that the announcer was told.
	macs map[[6]byte]string
	bgp  bgpState
	// reach is what is known of the way to other nodes.
	reach reachState
	// blackholes are the prefixes that have one; those of an earlier process are among them once blackholesListed is set.
	blackholes       map[netip.Prefix]struct{}
	blackholesListed bool
	// ending is set by Leave, leaving once what this node holds is to be handed over; leaveBy is until when the successors are waited for.
	ending, leaving atomic.Bool
	leaveBy         time.Time
	retention       retention

	ports    map[pools.ServiceKey]plan.HealthPort
	statuses map[string]plan.Status
	moved    map[string]move
	// rivals are the nodes that seem to answer as well, by VirtualIP; split those of which the log tells.
	rivals   map[string]string
	split    map[string]struct{}
	vips     *tally[string]
	services *tally[pools.ServiceKey]
	// refused are the addresses that Services may not have, as reported last.
	refused  map[pools.ServiceKey]map[netip.Addr]pools.Refusal
	refusals *tally[refusedAddress]

	// began is when this round did, changes counts what was ever changed.
	began   time.Time
	changes int

	lastError string
	mu        sync.Mutex
	health    Health
}

// New returns a Speaker that has not looked at anything yet.
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

// Run works until the context ends, or after Leave until what this node holds is handed over, or left to the kernel. It leaves everything else as it is
// then: the next process takes it over, and meanwhile the kernel goes on forwarding.
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
			if s.retain(time.Now()) { // as the round has just found
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

// pause returns when to act again without being kicked: at the next audit, or when something failed or was planned for then.
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
	if late := s.bgp.lateAt; late.After(s.began) && late.Before(next) { // an earlier one was looked at, or could not be
		next = late
	}
	if !s.leaveBy.IsZero() && s.leaveBy.Before(next) {
		next = s.leaveBy
	}
	return time.Until(next)
}

// note records the outcome of a round. An error is logged when it appears or changes, not each time it is met.
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
