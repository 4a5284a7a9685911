package health

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// NewcomersConfig says how new endpoints are checked. What is zero has its default.
type NewcomersConfig struct {
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Ended is called once for each endpoint whose check ends, by several goroutines. It may not call the Newcomers.
	Ended func(netip.AddrPort)
	// Ask finds out whether an endpoint takes connections, as halfOpen does, which is the default.
	Ask func(context.Context, netip.AddrPort) error
	// Timeout is how long an answer may take (100 ms), Interval from one refusal to the next question (20 ms), Limit how long a check
	// takes at most (2 s).
	Timeout, Interval, Limit time.Duration
	// Concurrency is how many questions are under way at most (64).
	Concurrency int
}

// Newcomers checks new TCP endpoints until nothing speaks against their taking connections. Only a refusal does, and only for a while: an
// endpoint that does not answer may be one that this node must not ask.
type Newcomers struct {
	cfg     NewcomersConfig
	ended   *prometheus.CounterVec
	asking  chan struct{} // holds one for each question under way
	running sync.WaitGroup

	mu   sync.Mutex
	have map[netip.AddrPort]context.CancelFunc
}

// NewNewcomers returns one that checks nothing yet.
func NewNewcomers(cfg NewcomersConfig) *Newcomers {
	orDefault(&cfg.Timeout, 100*time.Millisecond)
	orDefault(&cfg.Interval, 20*time.Millisecond)
	orDefault(&cfg.Limit, 2*time.Second)
	orDefault(&cfg.Concurrency, 64)
	if cfg.Ask == nil {
		cfg.Ask = halfOpen
	}
	n := &Newcomers{
		cfg: cfg, asking: make(chan struct{}, cfg.Concurrency), have: map[netip.AddrPort]context.CancelFunc{},
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "ironlb", Subsystem: "endpoint", Name: "checks_total",
			Help: "Checks of new TCP endpoints by how they ended: accepted, late (after refusals), refused (still, when the time was up), unanswered.",
		}, []string{"result"}),
	}
	for _, result := range []string{accepted, acceptedLate, refused, unanswered} {
		n.ended.WithLabelValues(result)
	}
	cfg.Metrics.MustRegister(n.ended)
	return n
}

// How a check ends.
const (
	accepted, acceptedLate, refused, unanswered = "accepted", "late", "refused", "unanswered"
)

func orDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// Set replaces the whole set of endpoints to check. It does not block. One that is still to be checked goes on; of one that is not, Ended is not
// told any more.
func (n *Newcomers) Set(endpoints map[netip.AddrPort]struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for at, cancel := range n.have {
		if _, still := endpoints[at]; !still {
			cancel()
			delete(n.have, at)
		}
	}
	for at := range endpoints {
		if n.have[at] == nil {
			ctx, cancel := context.WithCancel(context.Background())
			n.have[at] = cancel
			n.running.Go(func() { n.check(ctx, at) })
		}
	}
}

// Close ends all checks and waits for them.
func (n *Newcomers) Close() {
	n.Set(nil)
	n.running.Wait()
}

// check asks one endpoint until it does not refuse any more.
func (n *Newcomers) check(ctx context.Context, at netip.AddrPort) {
	start := time.Now()
	within, cancel := context.WithTimeout(ctx, n.cfg.Limit)
	defer cancel()
	err := n.ask(within, at)
	refusals := 0
	for ; errors.Is(err, syscall.ECONNREFUSED); err = n.ask(within, at) {
		if refusals++; !wait(within, n.cfg.Interval) {
			break
		}
	}
	if ctx.Err() != nil {
		return
	}
	result := accepted
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		result = refused
	case err != nil:
		result = unanswered
	case refusals > 0:
		result = acceptedLate
	}
	n.ended.WithLabelValues(result).Inc()
	if refusals > 0 {
		n.cfg.Log.Info("a ready endpoint refused connections: give its Pod a readinessProbe", "endpoint", at, "for", time.Since(start), "result", result)
	}
	n.cfg.Ended(at)
}

// ask asks once, as soon as it may.
func (n *Newcomers) ask(ctx context.Context, at netip.AddrPort) error {
	select {
	case n.asking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-n.asking }()
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeout)
	defer cancel()
	return n.cfg.Ask(ctx, at)
}

// wait returns false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
