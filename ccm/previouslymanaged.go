package ccm

import (
	"context"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	servicehelper "k8s.io/cloud-provider/service/helpers"

	"github.com/ironlb/ironlb/pools"
)

// A previously managed Service is a load balancer that IronLB served: without a class since --only-class was set, or of
// another class than IronLB's since that was renamed or the Service got another one. It keeps its address unchanged
// while it shows it. See docs/design/ccm-previously-managed.md.

// recorded reports whether the Service has a record of IronLB, which its author cannot write.
func recorded(svc *v1.Service) bool {
	have := outcomeIn(svc)
	return have.record != "" || have.condition.Type != ""
}

// unchangedClaim is the claim of a Service that must not change, whatever it requests: a move would never be written.
func unchangedClaim(c pools.Claim, lease []pools.Address) pools.Claim {
	c.Families, c.Policy, c.Addresses = nil, pools.RequireDualStack, nil
	for _, h := range lease {
		c.Families, c.Addresses = append(c.Families, pools.FamilyOf(h.Addr)), append(c.Addresses, h.Addr)
	}
	c.Pool, c.Invalid, c.Reallocate = "", "", false
	return c
}

// holds reports whether the Service shows an address that it holds.
func (l *ledger) holds(svc *v1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isHolding(svc)
}

func (l *ledger) isHolding(svc *v1.Service) bool {
	key, shown := keyOf(svc), ingressOf(svc)
	e := l.entries[key]
	return e != nil && e.uid == svc.UID &&
		slices.ContainsFunc(l.alloc.Lease(key), func(h pools.Address) bool { return slices.Contains(shown, h.Addr) })
}

// keep keeps a previously managed Service on what it holds. It returns false if the Service shows none of its
// addresses.
func (l *ledger) keep(svc *v1.Service) bool {
	claim := l.settings.claimOf(svc)
	l.mu.Lock()
	if !l.isHolding(svc) {
		l.mu.Unlock()
		return false
	}
	l.alloc.Assign(unchangedClaim(claim, l.alloc.Lease(claim.Service)), l.now()) // its ports and its key may have changed
	woken := l.alloc.Wake(l.now())
	l.mu.Unlock()
	l.propagate(woken)
	return true
}

// hasEntry reports whether the Service holds or waits for anything here.
func (l *ledger) hasEntry(svc *v1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[keyOf(svc)]
	return e != nil && e.uid == svc.UID
}

// keepPreviouslyManaged keeps what such a Service holds, without a write. If it shows something else, another
// controller has taken it over: IronLB's record is removed, and what it held is freed.
func (r *registrar) keepPreviouslyManaged(ctx context.Context, svc *v1.Service) error {
	switch {
	case r.ledger.keep(svc):
		return nil
	case !hasClass(svc) && len(svc.Status.LoadBalancer.Ingress) == 0 && !has(svc, finalizer):
		// No controller serves it now. IronLB's record stays: it identifies the owner of the service controller's
		// finalizer.
		return r.ledger.releaseUnchanged(ctx, svc, r.ledger.decision(svc))
	}
	return r.releaseToOther(ctx, svc)
}

// releaseToOther removes IronLB's record and finalizers from a Service of another controller, and frees what it held.
// The service controller's finalizer belongs to the other controller, unless the Service has a class.
func (r *registrar) releaseToOther(ctx context.Context, svc *v1.Service) error {
	err := r.end(ctx, svc, outcome{others: true}, r.finalizersOn(svc, svc.Spec.LoadBalancerClass != nil))
	if err == nil {
		r.log.Info("Service released to another controller", "service", keyOf(svc), "shows", ips(svc.Status.LoadBalancer.Ingress))
	}
	return err
}

// cleanUp removes IronLB's fields from a Service that is being deleted or is no longer a load balancer, and then frees
// what it held.
func (r *registrar) cleanUp(ctx context.Context, svc *v1.Service) error {
	given := func(a netip.Addr) bool { _, named := recordedFor(svc, a); return named }
	if len(svc.Status.LoadBalancer.Ingress) > 0 && !r.ledger.holds(svc) && !slices.ContainsFunc(ingressOf(svc), given) {
		return r.releaseToOther(ctx, svc) // another controller's before its end
	}
	return r.clear(ctx, svc, r.finalizersOn(svc, true)...)
}

// finalizersOn lists the finalizers to remove from the Service: IronLB's own and, if shared, the service controller's.
// The latter is included if that controller does not run and the Service has IronLB's record.
func (r *registrar) finalizersOn(svc *v1.Service, shared bool) []string {
	var on []string
	if has(svc, finalizer) {
		on = append(on, finalizer)
	}
	if shared && r.settings.OnlyClass && recorded(svc) && servicehelper.HasLBFinalizer(svc) {
		on = append(on, servicehelper.LoadBalancerCleanupFinalizer)
	}
	return on
}
