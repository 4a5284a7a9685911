package allocation

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// Ledger holds the allocator under one lock and passes on the effects of a change. An address that a Service gave up
// stays reserved for it until its status is written: see docs/design/ccm-crash.md.
type Ledger struct {
	log      *slog.Logger
	settings *servicerecord.Scope
	Now      func() time.Time
	// Requeue requeues a Service whose decision changed; PoolsChanged triggers the write of the pools' status. Both
	// return at once. They are set before the first use.
	Requeue      func(pools.ServiceKey)
	PoolsChanged func()
	// services returns all Services of the cache, cached one of them, or nil. Both are nil if there is no cache.
	services func() []*v1.Service
	cached   func(pools.ServiceKey) *v1.Service

	// ready is closed when the addresses held by Services have been adopted.
	ready chan struct{}

	mu    sync.Mutex
	alloc *pools.Allocator
	// entries are the Services that the allocator serves and those that wait.
	entries   map[pools.ServiceKey]*entry
	decisions int // decisions so far
	// adoptionDone: the addresses held by Services have been adopted. deletedEarly are the Services that were deleted
	// before that.
	adoptionDone bool
	deletedEarly map[types.UID]struct{}
}

// entry is the ledger's state of a Service in addition to its lease.
type entry struct {
	uid types.UID
	// The last decision, unless requested is false: then the Service was only adopted.
	requested bool
	busy      bool   // the decision is being written to the object, or will be: the Service is requeued
	decided   string // version of the object for which it was made, or that was adopted
	decision  int    // number of that decision in the global sequence
	// wrote is the last write of this process, with the version of the object, while the cache may be older. unsure: a
	// write failed, and it is unknown whether it was applied.
	wrote     *servicerecord.Outcome
	version   string
	unsure    bool
	published *servicerecord.Outcome // the outcome that was published last
}

func NewLedger(log *slog.Logger, settings *servicerecord.Scope) *Ledger {
	return &Ledger{
		log:          log,
		settings:     settings,
		Now:          time.Now,
		ready:        make(chan struct{}),
		alloc:        pools.New(),
		entries:      map[pools.ServiceKey]*entry{},
		deletedEarly: map[types.UID]struct{}{},
	}
}

// Assign decides the claim of the Service. It waits until recorded addresses are adopted. The error is a conflict if
// the other controller has decided about a newer version of the Service.
func (l *Ledger) Assign(ctx context.Context, svc *v1.Service) (pools.Decision, error) {
	d, _, err := l.assignIf(ctx, svc, func(*entry) bool { return true })
	return d, err
}

// assignIdle is like Assign, but returns false while a decision is being written to the object.
func (l *Ledger) assignIdle(ctx context.Context, svc *v1.Service) (pools.Decision, bool, error) {
	return l.assignIf(ctx, svc, func(e *entry) bool { return e == nil || !e.busy })
}

func (l *Ledger) assignIf(ctx context.Context, svc *v1.Service, may func(*entry) bool) (d pools.Decision, ok bool, err error) {
	if err := l.WaitReady(ctx); err != nil {
		return d, false, fmt.Errorf("assigning an address to Service %s: %w", servicerecord.KeyOf(svc), err)
	}
	claim := l.settings.ClaimOf(svc)
	l.change(func() bool {
		e := l.entries[claim.Service]
		switch {
		case !may(e):
			return false
		case e != nil && servicerecord.OlderVersion(svc.ResourceVersion, e.decided): // also if e is a later one of the same name
			err = errOlderCopy(svc)
			return false
		case e != nil && e.uid != svc.UID: // a deleted one of the same name
			l.alloc.Release(claim.Service, l.Now())
			e = nil
		}
		if e == nil {
			e = &entry{uid: svc.UID}
			l.entries[claim.Service] = e
		}
		if e.wrote != nil && claim.Reallocate { // the given object may be older than the record of the completed request
			servicerecord.RequestReallocation(&claim, servicerecord.RequestedReallocation(svc), e.wrote.Reallocated)
		}
		d, ok = l.alloc.Assign(claim, l.Now()), true
		l.decisions++
		e.requested, e.busy, e.decided, e.decision = true, true, svc.ResourceVersion, l.decisions
		return true
	})
	return d, ok, err
}

// entryOf returns the state of the Service, nil if there is none or it is that of another one of the same name.
func (l *Ledger) entryOf(svc *v1.Service) *entry {
	if e := l.entries[servicerecord.KeyOf(svc)]; e != nil && e.uid == svc.UID {
		return e
	}
	return nil
}

// newest returns the latest known outcome on the Service: that of the given object, unless this process wrote since.
// sure is false after a write with an unknown result.
func (l *Ledger) newest(svc *v1.Service) (have servicerecord.Outcome, sure bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entryOf(svc)
	if e == nil {
		return servicerecord.OutcomeIn(svc), true
	}
	if e.wrote != nil {
		if servicerecord.OlderVersion(svc.ResourceVersion, e.version) {
			return *e.wrote, !e.unsure
		}
		e.wrote = nil
	}
	return servicerecord.OutcomeIn(svc), !e.unsure
}

// Written records that the Service's object has the outcome. The addresses that the Service gave up are now free. after
// is the object as written; nil: no write was needed.
func (l *Ledger) Written(svc *v1.Service, lease []pools.Address, want servicerecord.Outcome, after *v1.Service) {
	key := servicerecord.KeyOf(svc)
	var freed []netip.Addr
	l.change(func() bool {
		e := l.entryOf(svc)
		if e == nil {
			return false // released meanwhile
		}
		if after != nil {
			e.wrote, e.version, e.unsure = &want, after.ResourceVersion, false
		}
		if !slices.Equal(l.alloc.Lease(key), lease) {
			return false // another decision is to be written
		}
		e.busy = false
		freed = l.alloc.Written(key, l.Now())
		return true
	})
	l.logFreed(key, freed)
}

func (l *Ledger) logFreed(key pools.ServiceKey, freed []netip.Addr) {
	if len(freed) > 0 {
		l.log.Info("addresses freed", "service", key, "addresses", fmt.Sprint(freed))
	}
}

// notWritten records that a write to the Service failed; have is the outcome before it. unsure: it may have been
// applied. Then the intended outcome counts as not published, whatever the object shows later.
func (l *Ledger) notWritten(svc *v1.Service, have servicerecord.Outcome, unsure bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entryOf(svc)
	if e == nil {
		return
	}
	e.busy = false
	if unsure {
		e.unsure = true
		if e.published == nil {
			e.published = &have
		}
	}
}

// setPublished returns the outcome published last: before the first time, that of the object. want then counts as
// published.
func (l *Ledger) setPublished(svc *v1.Service, have, want servicerecord.Outcome) servicerecord.Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entryOf(svc)
	if e == nil {
		return want // deleted: nothing to publish
	}
	if e.published != nil {
		have = *e.published
	}
	e.published = &want
	return have
}

// decision returns the number of the last decision about the Service.
func (l *Ledger) decision(svc *v1.Service) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entryOf(svc); e != nil {
		return e.decision
	}
	return 0
}

// current returns the outcome that the Service should have by the last decision. False: no decision was requested, or
// it is being written.
func (l *Ledger) current(svc *v1.Service) (servicerecord.Outcome, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := servicerecord.KeyOf(svc)
	e := l.entryOf(svc)
	if e == nil || !e.requested || e.busy {
		return servicerecord.Outcome{}, false
	}
	reason, message := l.alloc.Reason(key)
	return l.settings.OutcomeOf(svc, l.alloc.Lease(key), reason, message), true
}

// Release frees what the Service holds or waits for. Releasing an absent Service is not an error. A later Service of
// the same name is not affected.
func (l *Ledger) Release(ctx context.Context, key pools.ServiceKey, uid types.UID) error {
	return l.releaseIf(ctx, key, func(e *entry) bool { return e.uid == uid })
}

// releaseUnchanged is release, unless there was another decision since.
func (l *Ledger) releaseUnchanged(ctx context.Context, svc *v1.Service, decision int) error {
	return l.releaseIf(ctx, servicerecord.KeyOf(svc), func(e *entry) bool { return e.uid == svc.UID && e.decision == decision })
}

func (l *Ledger) releaseIf(ctx context.Context, key pools.ServiceKey, may func(*entry) bool) error {
	if err := l.WaitReady(ctx); err != nil {
		return fmt.Errorf("freeing the addresses of Service %s: %w", key, err)
	}
	var freed []netip.Addr
	l.change(func() bool {
		e := l.entries[key]
		if e == nil || !may(e) {
			return false
		}
		freed = l.alloc.Release(key, l.Now())
		delete(l.entries, key)
		l.withholdShown(key) // until the object is gone
		return true
	})
	l.logFreed(key, freed)
	return nil
}

// lease returns what the Service holds, and whether it has any state here, even if it only waits.
func (l *Ledger) lease(ctx context.Context, svc *v1.Service) ([]pools.Address, bool, error) {
	key := servicerecord.KeyOf(svc)
	if err := l.WaitReady(ctx); err != nil {
		return nil, false, fmt.Errorf("reading the addresses of Service %s: %w", key, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.Lease(key), l.entryOf(svc) != nil, nil
}

// Standing returns the addresses that the Service shows rightfully: those it holds, and those it gave up while that is
// not written yet.
func (l *Ledger) Standing(svc *v1.Service) []pools.Address {
	key := servicerecord.KeyOf(svc)
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := l.alloc.Lease(key)
	var out []pools.Address
	for _, h := range l.settings.HeldBy(svc) {
		if i := slices.IndexFunc(lease, func(a pools.Address) bool { return a.Addr == h.Addr }); i >= 0 {
			h = lease[i]
		} else if !slices.Contains(l.alloc.Holders(h.Addr), key) {
			continue
		}
		h.Pool = cmp.Or(l.alloc.PoolOf(h.Addr), h.Pool) // as in the speakers' view
		out = append(out, h)
	}
	return out
}

// PoolOf returns the pool that has an address now, empty for none.
func (l *Ledger) PoolOf(addr netip.Addr) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.PoolOf(addr)
}

// recorded returns the expected value of the Service's annotation.
func (l *Ledger) recorded(key pools.ServiceKey) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return servicerecord.AllocatedFrom(l.alloc.Lease(key))
}

// SetPools replaces the pools. A Service that shows an address of a new pool then holds it: before a waiting Service
// can get it.
func (l *Ledger) SetPools(all []pools.Pool) {
	l.change(func() bool {
		l.alloc.SetPools(all)
		if l.adoptionDone && l.services != nil { // before that, adopt adopts all
			l.adoptShown(l.services())
		}
		return true
	})
}

// adoptShown adopts the Services that show an address of a pool without IronLB's record, if no other Service holds it.
// The caller holds the lock since before the cache was read: the deletion of a cached Service is therefore handled
// later.
func (l *Ledger) adoptShown(services []*v1.Service) {
	var claims []pools.Claim
	held := func(h pools.Address) bool { return len(l.alloc.Holders(h.Addr)) > 0 }
	for _, svc := range services {
		if !servicerecord.Unrecorded(svc) || !l.settings.Wants(svc) || l.entries[servicerecord.KeyOf(svc)] != nil || l.isForeign(svc) {
			continue
		}
		c := l.settings.ClaimOf(svc)
		if slices.ContainsFunc(c.Held, held) {
			continue
		}
		claims = append(claims, c)
		l.entries[c.Service] = &entry{uid: svc.UID, decided: svc.ResourceVersion}
	}
	l.alloc.Adopt(claims)
}

// SetHosts sets the addresses of foreign hosts: see pools.Allocator.SetHosts.
func (l *Ledger) SetHosts(hosts map[netip.Addr]string) {
	l.change(func() bool { return l.alloc.SetHosts(hosts) })
}

// change runs f under the lock. If f reports that the allocator changed, the Services that this concerns are decided
// again, and those with another decision are requeued.
func (l *Ledger) change(f func() bool) {
	l.mu.Lock()
	if !f() {
		l.mu.Unlock()
		return
	}
	others := l.alloc.Reevaluate(l.Now())
	for _, key := range others {
		if e := l.entries[key]; e != nil {
			e.busy = true
		}
	}
	l.mu.Unlock()
	for _, key := range others {
		l.Requeue(key)
	}
	l.PoolsChanged()
}

// Expire ends the cool-downs that are over.
func (l *Ledger) Expire() { l.change(func() bool { return true }) }

// PoolStatus returns the state and counts of a pool.
func (l *Ledger) PoolStatus(name string) (pools.PoolStatus, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.PoolStatus(name)
}

// Restore continues the cool-downs that earlier leaders recorded.
func (l *Ledger) Restore(all []pools.CoolDown) {
	l.change(func() bool { l.alloc.Restore(all, l.Now()); return true })
}

// NextExpiry returns when the first cool-down ends.
func (l *Ledger) NextExpiry() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.NextExpiry()
}

// disown drops the decision for a Service that this process has never written and that shows recorded addresses without
// a holder. A killed leader had sent them, and they arrived after recorded addresses were adopted. The next decision
// starts from them.
func (l *Ledger) disown(svc *v1.Service) {
	key := servicerecord.KeyOf(svc)
	free := func(h pools.Address) bool {
		_, named := servicerecord.RecordedFor(svc, h.Addr)
		return named && len(l.alloc.Holders(h.Addr)) == 0
	}
	l.change(func() bool {
		e := l.entryOf(svc)
		if e == nil || e.version != "" || e.unsure || !slices.ContainsFunc(l.settings.HeldBy(svc), free) {
			return false
		}
		l.alloc.Release(key, l.Now())
		delete(l.entries, key)
		return true
	})
}

// holds reports whether the Service shows an address that it holds.
func (l *Ledger) holds(svc *v1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isHolding(svc)
}

func (l *Ledger) isHolding(svc *v1.Service) bool {
	key, shown := servicerecord.KeyOf(svc), servicerecord.IngressOf(svc)
	return l.entryOf(svc) != nil &&
		slices.ContainsFunc(l.alloc.Lease(key), func(h pools.Address) bool { return slices.Contains(shown, h.Addr) })
}

// keep keeps a previously managed Service on what it holds. It returns false if the Service shows none of its
// addresses.
func (l *Ledger) keep(svc *v1.Service) (kept bool) {
	claim := l.settings.ClaimOf(svc)
	l.change(func() bool {
		if kept = l.isHolding(svc); kept {
			l.alloc.Assign(servicerecord.UnchangedClaim(claim, l.alloc.Lease(claim.Service)), l.Now()) // its ports and its key may have changed
		}
		return kept
	})
	return kept
}

// hasEntry reports whether the Service holds or waits for anything here.
func (l *Ledger) hasEntry(svc *v1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entryOf(svc) != nil
}
