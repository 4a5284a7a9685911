package health

import (
	"container/heap"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Check is an HTTP check whether a node can take traffic.
type Check struct {
	Node string
	Addr netip.Addr
	Port uint16
	Path string
}

// Result is the result of a check.
type Result struct {
	Healthy bool
	// Weight is the value of X-Load-Balancing-Endpoint-Weight in the last good response, 1 without the header.
	Weight uint32
}

// ProberConfig configures the checks of nodes. Zero values have defaults.
type ProberConfig struct {
	Log *slog.Logger
	// Changed is called from Run with each first result and each change. It must not block.
	Changed func(Check, Result)
	// Rise good responses in a row make a node healthy (2), Fall bad ones unhealthy (3). The very first response counts
	// at once.
	Rise, Fall int
	// Interval is the interval between checks of a node (2 s), plus or minus a tenth; Timeout is the timeout of a
	// response (1 s). Together with Fall they bound how long a dead node gets connections: 3 x 2 s + 1 s.
	Interval, Timeout time.Duration
	// Concurrency is the maximum number of concurrent checks (64).
	Concurrency int
	// Transport carries the requests; default: new connections of this network namespace.
	Transport http.RoundTripper
}

// Prober carries out checks.
type Prober struct {
	cfg    ProberConfig
	client *http.Client
	wake   chan struct{}

	mu     sync.Mutex
	wanted map[Check]struct{}

	// The other fields belong to Run.
	probes map[Check]*probe
	due    schedule
	busy   int
	done   chan outcome
}

// NewProber returns a Prober without checks.
func NewProber(cfg ProberConfig) *Prober {
	orDefault(&cfg.Rise, 2)
	orDefault(&cfg.Fall, 3)
	orDefault(&cfg.Concurrency, 64)
	orDefault(&cfg.Interval, 2*time.Second)
	orDefault(&cfg.Timeout, time.Second)
	if cfg.Transport == nil {
		cfg.Transport = newTransport()
	}
	return &Prober{
		cfg:    cfg,
		client: newClient(cfg.Transport),
		wake:   make(chan struct{}, 1),
		probes: map[Check]*probe{},
		done:   make(chan outcome),
	}
}

// Set replaces the full set of checks, which the Prober keeps. It does not block. A check that stays keeps its state; a
// removed one is not reported any more.
func (p *Prober) Set(checks map[Check]struct{}) {
	p.mu.Lock()
	p.wanted = checks
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run checks until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	asking, end := context.WithCancel(ctx)
	defer func() {
		end()
		for ; p.busy > 0; p.busy-- {
			<-p.done
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p.start(asking)
		p.rearm(timer)
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
			p.adopt()
		case <-timer.C:
		case o := <-p.done:
			p.busy--
			p.settle(o)
		}
	}
}

// adopt takes over the set passed to Set.
func (p *Prober) adopt() {
	p.mu.Lock()
	wanted := p.wanted
	p.mu.Unlock()
	for check, probe := range p.probes {
		if _, ok := wanted[check]; ok {
			continue
		}
		delete(p.probes, check)
		if probe.index >= 0 {
			heap.Remove(&p.due, probe.index)
		}
	}
	now := time.Now()
	for check := range wanted {
		if p.probes[check] == nil {
			probe := &probe{check: check, due: now}
			p.probes[check] = probe
			heap.Push(&p.due, probe)
		}
	}
}

// start begins the checks that are due, up to the concurrency limit.
func (p *Prober) start(ctx context.Context) {
	now := time.Now()
	for p.busy < p.cfg.Concurrency && len(p.due) > 0 && !p.due[0].due.After(now) {
		probe := heap.Pop(&p.due).(*probe)
		p.busy++
		go func() {
			ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
			defer cancel()
			weight, err := ask(ctx, p.client, probe.check)
			p.done <- outcome{probe, weight, err}
		}()
	}
}

// rearm sets the timer for the next due check, or stops it while the concurrency limit is reached.
func (p *Prober) rearm(timer *time.Timer) {
	if p.busy < p.cfg.Concurrency && len(p.due) > 0 {
		timer.Reset(time.Until(p.due[0].due))
		return
	}
	timer.Stop()
}

// outcome is the outcome of one check.
type outcome struct {
	probe  *probe
	weight uint32
	err    error
}

// settle counts an outcome, reports a change and schedules the next check.
func (p *Prober) settle(o outcome) {
	probe := o.probe
	if p.probes[probe.check] != probe {
		return // removed meanwhile
	}
	// A tenth in either direction prevents synchronized checks by the nodes of a cluster.
	probe.due = time.Now().Add(p.cfg.Interval*9/10 + rand.N(p.cfg.Interval/5))
	heap.Push(&p.due, probe)
	if !probe.count(o, p.cfg.Rise, p.cfg.Fall) {
		return
	}
	log := p.cfg.Log.With("node", probe.check.Node, "address", netip.AddrPortFrom(probe.check.Addr, probe.check.Port),
		"path", probe.check.Path, "healthy", probe.result.Healthy, "weight", probe.result.Weight)
	if o.err != nil {
		log.Info("checked a node", "reason", o.err)
	} else {
		log.Info("checked a node")
	}
	p.cfg.Changed(probe.check, probe.result)
}

// probe is a check with its state.
type probe struct {
	check Check
	due   time.Time
	index int // in the schedule, -1 while the check is under way

	known  bool
	streak int // responses in a row that contradict the result
	result Result
}

// count records an outcome and reports whether the result changed.
func (p *probe) count(o outcome, rise, fall int) bool {
	before, first, good := p.result, !p.known, o.err == nil
	p.known = true
	if good {
		p.result.Weight = o.weight
	}
	needed := rise
	if p.result.Healthy {
		needed = fall
	}
	switch {
	case good == p.result.Healthy:
		p.streak = 0
	default:
		p.streak++
	}
	if first && good || p.streak >= needed {
		p.result.Healthy, p.streak = good, 0
	}
	// The weight of an unhealthy node does not matter.
	return first || before.Healthy != p.result.Healthy || p.result.Healthy && before != p.result
}

// schedule is a heap of the probes that are not under way, the next one first.
type schedule []*probe

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].due.Before(s[j].due) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *schedule) Push(x any) {
	probe := x.(*probe)
	probe.index = len(*s)
	*s = append(*s, probe)
}

func (s *schedule) Pop() any {
	last := len(*s) - 1
	probe := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	probe.index = -1
	return probe
}
