package ccm

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/ironlb/ironlb/pools"
)

// ledger holds the allocator under one lock and tells those concerned what came of a change.
type ledger struct {
	log    *slog.Logger
	events record.EventRecorder
	now    func() time.Time
	// wake has a Service looked at again; poolsChanged has the pools' status written. Both return at once. They are set
	// before the first use.
	wake         func(pools.ServiceKey)
	poolsChanged func()

	// ready is closed when what Services hold has been adopted.
	ready chan struct{}

	mu    sync.Mutex
	alloc *pools.Allocator
	// known are the Services that the allocator serves or that wait, each with the refusal last told, if any.
	known map[pools.ServiceKey]string
}

func newLedger(log *slog.Logger, events record.EventRecorder) *ledger {
	return &ledger{
		log:    log,
		events: events,
		now:    time.Now,
		ready:  make(chan struct{}),
		alloc:  pools.New(),
		known:  map[pools.ServiceKey]string{},
	}
}

// adopt records what Services hold and lets the first Assign go ahead. It is called once, after the first setPools.
func (l *ledger) adopt(services []*v1.Service) {
	var claims []pools.Claim
	byKey := map[pools.ServiceKey]*v1.Service{}
	for _, svc := range services {
		if c := claimOf(svc); len(c.Held) > 0 {
			claims = append(claims, c)
			byKey[c.Service] = svc
		}
	}
	l.mu.Lock()
	for _, c := range claims {
		l.known[c.Service] = ""
	}
	refused := l.alloc.Adopt(claims)
	l.mu.Unlock()
	for _, key := range refused {
		l.log.Warn("address held twice", "service", key, "addresses", ingressOf(byKey[key]), "mend", "the younger Service gets another one")
	}
	l.log.Info("recorded addresses adopted", "services", len(claims)-len(refused))
	close(l.ready)
}

// assign answers what the Service asks for. It waits until recorded addresses are adopted.
func (l *ledger) assign(ctx context.Context, svc *v1.Service) (pools.Decision, error) {
	if err := l.waitReady(ctx); err != nil {
		return pools.Decision{}, fmt.Errorf("assigning an address to Service %s: %w", keyOf(svc), err)
	}
	claim := claimOf(svc)

	l.mu.Lock()
	d := l.alloc.Assign(claim, l.now())
	told := l.known[claim.Service]
	l.known[claim.Service] = d.Message
	woken := l.alloc.Wake(l.now())
	l.mu.Unlock()

	l.tell(svc, d, told)
	l.kick(woken)
	return d, nil
}

// tell says a change of outcome, once.
func (l *ledger) tell(svc *v1.Service, d pools.Decision, told string) {
	key := keyOf(svc)
	if d.Changed {
		l.log.Info("lease changed", "service", key, "addresses", addrs(d.Lease), "pools", allocatedFrom(d.Lease), "freed", fmt.Sprint(d.Freed), "reason", d.Reason)
	}
	switch {
	case d.Message == told:
	case d.Message == "":
		l.events.Eventf(svc, v1.EventTypeNormal, string(d.Reason), "The Service holds %s now", addrs(d.Lease))
	case d.Reason.Warning():
		l.log.Warn("request not met", "service", key, "reason", d.Reason, "message", d.Message, "holds", addrs(d.Lease))
		l.events.Event(svc, v1.EventTypeWarning, string(d.Reason), d.Message)
	default:
		l.events.Event(svc, v1.EventTypeNormal, string(d.Reason), d.Message)
	}
}

// release frees what the Service holds or waits for. Releasing what is not there is no error.
func (l *ledger) release(ctx context.Context, key pools.ServiceKey) error {
	if err := l.waitReady(ctx); err != nil {
		return fmt.Errorf("freeing the addresses of Service %s: %w", key, err)
	}
	l.mu.Lock()
	freed := l.alloc.Release(key, l.now())
	delete(l.known, key)
	woken := l.alloc.Wake(l.now())
	l.mu.Unlock()
	if len(freed) > 0 {
		l.log.Info("addresses freed", "service", key, "addresses", fmt.Sprint(freed))
	}
	l.kick(woken)
	return nil
}

// lease returns what the Service holds, and whether anything of it is left here, be it only its place in the queue.
func (l *ledger) lease(ctx context.Context, key pools.ServiceKey) ([]pools.Address, bool, error) {
	if err := l.waitReady(ctx); err != nil {
		return nil, false, fmt.Errorf("looking up the addresses of Service %s: %w", key, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.known[key]
	return l.alloc.Lease(key), known, nil
}

// held returns what the Service holds.
func (l *ledger) held(key pools.ServiceKey) []pools.Address {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.Lease(key)
}

// recorded returns what the Service's annotation should say.
func (l *ledger) recorded(key pools.ServiceKey) string {
	return allocatedFrom(l.held(key))
}

// setPools replaces the pools.
func (l *ledger) setPools(all []pools.Pool) {
	l.mu.Lock()
	l.alloc.SetPools(all)
	woken := l.alloc.Wake(l.now())
	l.mu.Unlock()
	l.kick(woken)
}

// setNamespace tells the labels of a namespace; deleteNamespace that it is gone.
func (l *ledger) setNamespace(name string, labels map[string]string) {
	l.mu.Lock()
	l.alloc.SetNamespace(name, labels)
	woken := l.alloc.Wake(l.now())
	l.mu.Unlock()
	l.kick(woken)
}

func (l *ledger) deleteNamespace(name string) {
	l.mu.Lock()
	l.alloc.DeleteNamespace(name)
	woken := l.alloc.Wake(l.now())
	l.mu.Unlock()
	l.kick(woken)
}

// expire wakes those who wait for an address at rest. It returns when to call it again; false: not before something changes.
func (l *ledger) expire() (time.Time, bool) {
	l.mu.Lock()
	woken := l.alloc.Wake(l.now())
	at, ok := l.alloc.NextExpiry()
	l.mu.Unlock()
	l.kick(woken)
	return at, ok
}

// poolStatus returns the state and counts of a pool.
func (l *ledger) poolStatus(name string) (pools.PoolStatus, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.PoolStatus(name)
}

// kick passes on what the allocator says after a change.
func (l *ledger) kick(woken []pools.ServiceKey) {
	for _, key := range woken {
		l.wake(key)
	}
	l.poolsChanged()
}

func (l *ledger) waitReady(ctx context.Context) error {
	select {
	case <-l.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// addrs lists the addresses for people.
func addrs(lease []pools.Address) string {
	if len(lease) == 0 {
		return "nothing"
	}
	texts := make([]string, len(lease))
	for i, a := range lease {
		texts[i] = a.Addr.String()
	}
	return strings.Join(texts, ", ")
}

// ingressOf lists the addresses in the Service's status.
func ingressOf(svc *v1.Service) []netip.Addr {
	var out []netip.Addr
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a)
		}
	}
	return out
}
