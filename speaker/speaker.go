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
	"github.com/ironlb/ironlb/speaker/plan"
)

// Source is what is known of the cluster.
type Source interface {
	// Observe returns the View and what changed in it since the last call; ok is false until everything was listed once.
	// The View is the caller's until it calls Observe again.
	Observe() (view *plan.View, touched plan.Touched, ok bool)
}

// VirtualServers is the kernel's IPVS.
type VirtualServers interface {
	// ListOf returns the virtual servers of these addresses.
	ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error)
	// Virtuals returns all virtual servers without their real servers, which costs far less.
	Virtuals() (map[ipvs.Key]ipvs.Settings, error)
	// Apply carries out the ops in order, goes on after an error and returns those done.
	Apply(ops []ipvs.Op) (done []ipvs.Op, err error)
}

// Filter is the packet filter's tables of ours.
type Filter interface {
	// List returns what the tables hold, also those of an earlier process.
	List(ctx context.Context) (ipvs.Filter, error)
	// Check tells whether the tables still are as this process made them.
	Check(ctx context.Context) (intact bool, err error)
	// Build makes the tables anew and returns how many elements it wrote.
	Build(ctx context.Context, want ipvs.Filter) (elements int, err error)
	// Update changes elements of tables that were built; its cost follows their number.
	Update(ctx context.Context, changes []ipvs.FilterChange) (elements int, err error)
	// Remove deletes the tables.
	Remove(ctx context.Context) error
}

// Addresses are the virtual addresses that the node takes in as its own.
type Addresses interface {
	// List returns those that are ours, also those of an earlier process, and the node's others. What is among the others
	// must not become ours as well: the node itself would be cut off.
	List() (ours, others map[netip.Addr]struct{}, err error)
	// Add tells whether the address was not there before.
	Add(netip.Addr) (bool, error)
	// Remove removes an address if it is ours, and tells whether it was.
	Remove(netip.Addr) (bool, error)
}

// Sysctls are the kernel's settings that forwarding and answering rely on.
type Sysctls interface {
	// Apply sets those that differ and returns them as "key=value".
	Apply() (changed []string, err error)
}

// Announcer answers for addresses on the network.
type Announcer interface {
	// Announce replaces the whole set and returns the interfaces on which each address is answered for.
	Announce(map[netip.Addr]plan.Announcement) (map[netip.Addr][]string, error)
}

// Reporter publishes the status of VirtualIPs. Report takes the whole set each time and does not block.
type Reporter interface {
	Report(map[string]plan.Status)
}

// Kick wakes the loop up.
type Kick struct {
	wake chan struct{}
	look atomic.Bool
}

// NewKick returns a Kick that remembers one call.
func NewKick() *Kick { return &Kick{wake: make(chan struct{}, 1)} }

// Now makes the loop plan again if something changed in the View. It never blocks.
func (k *Kick) Now() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Look makes the loop look at the node at once, as the audit does twice a second.
func (k *Kick) Look() {
	k.look.Store(true)
	k.Now()
}

// Node are the drivers of what lives on the node.
type Node struct {
	VirtualServers VirtualServers
	Filter         Filter
	Addresses      Addresses
	Sysctls        Sysctls
}

// Config of a Speaker; every field is needed.
type Config struct {
	NodeName  string
	Plan      plan.Options
	Log       *slog.Logger
	Kick      *Kick
	Source    Source
	Node      Node
	Announcer Announcer
	Reporter  Reporter
	Metrics   *Metrics
}

// How often the loop looks by itself, and how soon it tries again after an error.
const (
	// auditEvery is from one look at the node to the next, so that what others destroyed is back within two seconds, also
	// where starting nft takes long.
	auditEvery = 500 * time.Millisecond
	retryFirst = 250 * time.Millisecond
	retryMost  = 10 * time.Second
	relistMost = 10 * time.Second
	// restShare bounds the cost of listing every real server, which is one request for each virtual server: a list that
	// took d is not repeated for restShare times d, up to relistMost. A round that failed rests likewise, up to retryMost.
	restShare = 20
)

// errNotSynced is the reason before the first plan.
var errNotSynced = errors.New("waiting for the first list of Services, EndpointSlices, Nodes and VirtualIPs from the API server")

// Speaker is the loop.
type Speaker struct {
	cfg     Config
	planner *plan.Planner
	desired *plan.Desired
	// announced is what the announcer was last told, held where it really answers.
	announced map[netip.Addr]plan.Announcement
	held      map[netip.Addr][]string
	// known is what the node held after the last round; nil if that is not certain. audited is when it was last seen.
	known   *state
	audited time.Time
	// listed is when the real servers were last seen, too; relist is the time to the next.
	listed    time.Time
	relist    time.Duration
	failures  int
	lastError string

	mu     sync.Mutex
	health Health
}

// New returns a Speaker that has not looked at anything yet.
func New(cfg Config) *Speaker {
	return &Speaker{
		cfg:     cfg,
		planner: plan.NewPlanner(cfg.Plan),
		health:  Health{Reason: errNotSynced.Error(), Round: time.Now()},
	}
}

// Run works until the context ends. It leaves everything as it is then: the next process takes it over, and meanwhile
// the kernel goes on forwarding.
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
		err := s.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		took := time.Since(start)
		s.note(err, took)
		timer.Reset(s.pause(err, took))
	}
}

// pause returns when to look again without being kicked: at the next audit, also if the operator must mend something, and
// later and later while a change of the node fails.
func (s *Speaker) pause(err error, took time.Duration) time.Duration {
	if s.known != nil || errors.Is(err, errNotSynced) {
		s.failures = 0
		return time.Until(s.audited.Add(auditEvery))
	}
	wait := retryFirst << min(s.failures, 10)
	s.failures++
	return min(max(wait, restShare*took), retryMost)
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
