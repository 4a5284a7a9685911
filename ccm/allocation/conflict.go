package allocation

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// retryOnConflict runs decide for the Service. If the API server refuses the write because the Service has changed, it
// runs it again for the current Service. The controllers' own retry would be 5 s later, with a Warning. If the
// Service is deleted by then, its entry in the ledger is released.
func (r *Registrar) retryOnConflict(
	ctx context.Context, svc *v1.Service, decide func(context.Context, *v1.Service) error,
) error {
	exists, err := servicerecord.RetryOnConflict(ctx, r.api, svc, func(now *v1.Service) error {
		if now != svc && now.DeletionTimestamp != nil && !servicerecord.Recorded(now) && !servicerecord.HasFinalizer(now, servicerecord.Finalizer) {
			return r.ledger.Release(ctx, servicerecord.KeyOf(now), now.UID) // nothing was written, so no controller cleans up
		}
		if now != svc {
			r.ledger.disown(now)
		}
		return decide(ctx, now)
	})
	if !exists {
		return r.ledger.Release(ctx, servicerecord.KeyOf(svc), svc.UID)
	}
	return err
}

// errOlderCopy is the conflict of a decision about an outdated version of the Service: a newer one was decided about.
func errOlderCopy(svc *v1.Service) error {
	return apierrors.NewConflict(v1.Resource("services"), servicerecord.KeyOf(svc).String(),
		fmt.Errorf("version %s is not the last one decided about", svc.ResourceVersion))
}

// refused records that the API server did not accept a write to the Service: its object is unchanged.
func (l *Ledger) refused(svc *v1.Service) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[servicerecord.KeyOf(svc)]; e != nil && e.uid == svc.UID {
		e.busy = false
	}
}

// disown drops the decision for a Service that this process has never written and that shows recorded addresses without
// a holder. A killed leader had sent them, and they arrived after recorded addresses were adopted. The next decision
// starts from them.
func (l *Ledger) disown(svc *v1.Service) {
	key := servicerecord.KeyOf(svc)
	l.mu.Lock()
	free := func(h pools.Address) bool {
		_, named := servicerecord.RecordedFor(svc, h.Addr)
		return named && len(l.alloc.Holders(h.Addr)) == 0
	}
	e := l.entries[key]
	if e == nil || e.uid != svc.UID || e.version != "" || e.unsure || !slices.ContainsFunc(l.settings.HeldBy(svc), free) {
		l.mu.Unlock()
		return
	}
	l.alloc.Release(key, l.Now())
	delete(l.entries, key)
	others := l.reevaluate()
	l.mu.Unlock()
	l.propagate(others)
}
