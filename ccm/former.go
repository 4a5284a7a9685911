package ccm

import (
	"context"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	servicehelper "k8s.io/cloud-provider/service/helpers"

	"github.com/ironlb/ironlb/pools"
)

// A former Service is a load balancer that we served, and serve no more: of no class since --only-class was set, or of
// another class than ours since that was renamed or the Service got another one. It keeps its address, untouched, while
// it shows it. See docs/design/ccm-former.md.

// recorded says whether the Service has a record of ours, which its author cannot write.
func recorded(svc *v1.Service) bool {
	have := outcomeIn(svc)
	return have.record != "" || have.condition.Type != ""
}

// standstill is the claim of a Service that stays as it is, whatever it asks for: nobody would write down that it moved.
func standstill(c pools.Claim, lease []pools.Address) pools.Claim {
	c.Families, c.Policy, c.Addresses = nil, pools.RequireDualStack, nil
	for _, h := range lease {
		c.Families, c.Addresses = append(c.Families, pools.FamilyOf(h.Addr)), append(c.Addresses, h.Addr)
	}
	c.Pool, c.Invalid, c.Reallocate = "", "", false
	return c
}

// holds says whether the Service shows an address that it holds.
func (l *ledger) holds(svc *v1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isHolding(svc)
}

func (l *ledger) isHolding(svc *v1.Service) bool {
	key, shown := keyOf(svc), ingressOf(svc)
	e := l.known[key]
	return e != nil && e.uid == svc.UID &&
		slices.ContainsFunc(l.alloc.Lease(key), func(h pools.Address) bool { return slices.Contains(shown, h.Addr) })
}

// keep has a former Service stay on what it holds, and returns false if it holds nothing of what it shows.
func (l *ledger) keep(svc *v1.Service) bool {
	claim := l.settings.claimOf(svc)
	l.mu.Lock()
	if !l.isHolding(svc) {
		l.mu.Unlock()
		return false
	}
	l.alloc.Assign(standstill(claim, l.alloc.Lease(claim.Service)), l.now()) // its ports and its key may have changed
	woken := l.alloc.Wake(l.now())
	l.mu.Unlock()
	l.kick(woken)
	return true
}

// knows says whether the Service holds or waits for anything here.
func (l *ledger) knows(svc *v1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.known[keyOf(svc)]
	return e != nil && e.uid == svc.UID
}

// former keeps what a former Service holds, without a write. If it shows something else, another controller has it now: our
// record goes, and what it held is free.
func (r *registrar) former(ctx context.Context, svc *v1.Service) error {
	switch {
	case r.ledger.keep(svc):
		return nil
	case !hasClass(svc) && len(svc.Status.LoadBalancer.Ingress) == 0 && !has(svc, finalizer):
		// Nobody serves it now. Our record stays: it tells whose the service controller's finalizer is.
		return r.ledger.releaseUnchanged(ctx, svc, r.ledger.turn(svc))
	}
	return r.leave(ctx, svc)
}

// leave takes our record and our finalizers off a Service that is another controller's, and frees what it held. The service
// controller's finalizer is the other one's, unless the Service has a class.
func (r *registrar) leave(ctx context.Context, svc *v1.Service) error {
	err := r.end(ctx, svc, outcome{others: true}, r.finalizersOn(svc, svc.Spec.LoadBalancerClass != nil))
	if err == nil {
		r.log.Info("Service left to another controller", "service", keyOf(svc), "shows", ips(svc.Status.LoadBalancer.Ingress))
	}
	return err
}

// cleanUp takes what is ours off a Service that is being deleted or is a load balancer no more, and then frees what it held.
func (r *registrar) cleanUp(ctx context.Context, svc *v1.Service) error {
	given := func(a netip.Addr) bool { _, named := recordedFor(svc, a); return named }
	if len(svc.Status.LoadBalancer.Ingress) > 0 && !r.ledger.holds(svc) && !slices.ContainsFunc(ingressOf(svc), given) {
		return r.leave(ctx, svc) // another controller's before its end
	}
	return r.clear(ctx, svc, r.finalizersOn(svc, true)...)
}

// finalizersOn lists the finalizers on the Service that are ours to take off: our own, and, if shared, the service controller's
// where it does not run, of a Service that has our record.
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
