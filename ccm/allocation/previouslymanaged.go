package allocation

import (
	"context"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// A previously managed Service is a load balancer that IronLB served: without a class since --only-class was set, or of
// another class than IronLB's since that was renamed or the Service got another one. It keeps its address unchanged
// while it shows it. See docs/design/ccm-previously-managed.md.

// holds reports whether the Service shows an address that it holds.
func (l *Ledger) holds(svc *v1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isHolding(svc)
}

func (l *Ledger) isHolding(svc *v1.Service) bool {
	key, shown := servicerecord.KeyOf(svc), servicerecord.IngressOf(svc)
	e := l.entries[key]
	return e != nil && e.uid == svc.UID &&
		slices.ContainsFunc(l.alloc.Lease(key), func(h pools.Address) bool { return slices.Contains(shown, h.Addr) })
}

// keep keeps a previously managed Service on what it holds. It returns false if the Service shows none of its
// addresses.
func (l *Ledger) keep(svc *v1.Service) bool {
	claim := l.settings.ClaimOf(svc)
	l.mu.Lock()
	if !l.isHolding(svc) {
		l.mu.Unlock()
		return false
	}
	l.alloc.Assign(servicerecord.UnchangedClaim(claim, l.alloc.Lease(claim.Service)), l.Now()) // its ports and its key may have changed
	others := l.reevaluate()
	l.mu.Unlock()
	l.propagate(others)
	return true
}

// hasEntry reports whether the Service holds or waits for anything here.
func (l *Ledger) hasEntry(svc *v1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[servicerecord.KeyOf(svc)]
	return e != nil && e.uid == svc.UID
}

// keepPreviouslyManaged keeps what such a Service holds, without a write. If it shows something else, another
// controller has taken it over: IronLB's record is removed, and what it held is freed.
func (r *Registrar) keepPreviouslyManaged(ctx context.Context, svc *v1.Service) error {
	if r.ledger.keep(svc) {
		return nil
	}
	return r.releaseToOther(ctx, svc)
}

// releaseToOther removes IronLB's record and finalizers from a Service of another controller, and frees what it held.
// The service controller's finalizer belongs to the other controller, unless the Service has a class.
func (r *Registrar) releaseToOther(ctx context.Context, svc *v1.Service) error {
	err := r.end(ctx, svc, servicerecord.Outcome{Others: true}, servicerecord.FinalizersOn(svc, r.settings.OnlyClass, svc.Spec.LoadBalancerClass != nil))
	if err == nil {
		r.Log.Info("Service released to another controller", "service", servicerecord.KeyOf(svc), "shows", servicerecord.IPs(svc.Status.LoadBalancer.Ingress))
	}
	return err
}

// cleanUp removes IronLB's fields from a Service that is being deleted or is no longer a load balancer, and then frees
// what it held.
func (r *Registrar) cleanUp(ctx context.Context, svc *v1.Service) error {
	given := func(a netip.Addr) bool { _, named := servicerecord.RecordedFor(svc, a); return named }
	if len(svc.Status.LoadBalancer.Ingress) > 0 && !r.ledger.holds(svc) && !slices.ContainsFunc(servicerecord.IngressOf(svc), given) {
		return r.releaseToOther(ctx, svc) // another controller's before its end
	}
	return r.clear(ctx, svc, servicerecord.FinalizersOn(svc, r.settings.OnlyClass, true)...)
}
