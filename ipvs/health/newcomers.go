package health

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// NewcomersConfig configures the checks of new endpoints. Log, Metrics and Ended are required; other zero values have
// defaults.
type NewcomersConfig struct {
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Ended is called once for each endpoint whose check ends, by several goroutines. It must not call the Newcomers.
	Ended func(netip.AddrPort)
	// Ask checks whether an endpoint accepts connections; halfOpen is the default.
	Ask func(context.Context, netip.AddrPort) error
	// Timeout is the timeout of an answer (100 ms), Limit that of a full check (5 s). After a refusal the next attempt
	// follows after Interval (20 ms), which grows by half each time up to LongestInterval (200 ms): each node sends
	// attempts.
	Timeout, Limit, Interval, LongestInterval time.Duration
	// Concurrency is the maximum number of concurrent attempts (64).
	Concurrency int
}

// Newcomers checks new TCP endpoints until nothing indicates that they do not accept connections. Only a refusal does,
// and only for a limited time: an endpoint that does not answer may be one that this node is not allowed to reach.
type Newcomers struct {
	cfg     NewcomersConfig
	ended   *prometheus.CounterVec
	asking  chan struct{} // holds one element per attempt under way
	running sync.WaitGroup

	mu   sync.Mutex
	have map[netip.AddrPort]context.CancelFunc
}

// NewNewcomers returns a Newcomers that checks nothing yet.
func NewNewcomers(cfg NewcomersConfig) *Newcomers {
	orDefault(&cfg.Timeout, 100*time.Millisecond)
	orDefault(&cfg.Interval, 20*time.Millisecond)
	orDefault(&cfg.LongestInterval, 200*time.Millisecond)
	orDefault(&cfg.Limit, 5*time.Second)
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

// Results of a check.
const (
	accepted, acceptedLate, refused, unanswered = "accepted", "late", "refused", "unanswered"
)

func orDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// Set replaces the full set of endpoints to check. It does not block. The check of an endpoint that stays continues;
// Ended is not called for a removed one.
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

// check probes one endpoint: once, and after a refusal until it no longer refuses. After that a missing answer is
// inconclusive: the kernel limits the rate of ICMP errors that it sends.
func (n *Newcomers) check(ctx context.Context, at netip.AddrPort) {
	start := time.Now()
	within, cancel := context.WithTimeout(ctx, n.cfg.Limit)
	defer cancel()
	err := n.ask(within, at)
	result := unanswered
	switch {
	case err == nil:
		result = accepted
	case errors.Is(err, syscall.ECONNREFUSED):
		result = n.askAgain(within, at)
	}
	if ctx.Err() != nil {
		return
	}
	n.ended.WithLabelValues(result).Inc()
	switch result {
	case unanswered:
		n.cfg.Log.Debug("a new endpoint does not answer; it counts as taking connections", "endpoint", at, "error", err)
	case acceptedLate, refused:
		n.cfg.Log.Info("an endpoint was ready and refused connections; a readinessProbe of its Pod reports to Kubernetes when it listens",
			"endpoint", at, "for", time.Since(start), "result", result)
	}
	n.cfg.Ended(at)
}

// askAgain probes an endpoint that has refused until it no longer refuses.
func (n *Newcomers) askAgain(ctx context.Context, at netip.AddrPort) (result string) {
	for interval := n.cfg.Interval; ; interval = min(interval*3/2, n.cfg.LongestInterval) {
		if !wait(ctx, interval*3/4+rand.N(interval/2)) {
			return refused
		}
		if n.ask(ctx, at) == nil {
			return acceptedLate
		}
	}
}

// ask probes once, as soon as the concurrency limit allows.
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
