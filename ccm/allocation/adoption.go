package allocation

import (
	"context"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
)

// Adopt records the addresses that Services hold and unblocks the first Assign. It is called once, after the first
// setPools, with every existing Service.
func (l *Ledger) Adopt(services []v1.Service) {
	var claims []pools.Claim
	shown := map[pools.ServiceKey][]netip.Addr{}
	l.mu.Lock()
	for i := range services {
		svc := &services[i]
		if _, early := l.deletedEarly[svc.UID]; early {
			continue
		}
		if c := l.settings.ClaimOf(svc); len(c.Held)+len(c.Lost) > 0 && !l.isForeign(svc) {
			claims = append(claims, c)
			shown[c.Service] = servicerecord.IngressOf(svc)
			l.entries[c.Service] = &entry{uid: svc.UID, decided: svc.ResourceVersion}
		}
	}
	refused := l.alloc.Adopt(claims)
	l.adoptionDone, l.deletedEarly = true, nil
	for i := range services {
		l.withholdShown(servicerecord.KeyOf(&services[i])) // the list may be newer than the cache
	}
	l.mu.Unlock()
	for _, key := range refused {
		l.log.Warn("address held twice", "service", key, "addresses", shown[key], "remediation", "the younger Service gets another one")
	}
	l.log.Info("recorded addresses adopted", "services", len(claims))
	close(l.ready)
}

// serviceDeleted frees what a deleted Service held. The Service may have been deleted before it could be adopted.
func (l *Ledger) serviceDeleted(ctx context.Context, key pools.ServiceKey, uid types.UID) {
	l.mu.Lock()
	adopted := l.adoptionDone
	if !adopted {
		l.deletedEarly[uid] = struct{}{}
	}
	l.mu.Unlock()
	if adopted {
		_ = l.Release(ctx, key, uid) // fails only while it waits, when the process ends
	}
}

// Foreign reports whether another controller serves the Service. Such a Service has no address of IronLB, by its record
// or in the ledger. It has another class, or none with --only-class, or shows only addresses of no pool. Nothing is
// written to it but the removal of a condition from when it waited, not even at its deletion, until a pool has one of
// the addresses or they are removed.
func (l *Ledger) Foreign(svc *v1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return (l.entryOf(svc) == nil || !l.alloc.Recorded(servicerecord.KeyOf(svc))) && l.isForeign(svc)
}

// withholdShown withholds what the Service shows in the cache and does not hold, and its external IPs. It reports
// whether that changed. The caller holds the lock: a Service that is in the cache has its deletion handled later.
func (l *Ledger) withholdShown(key pools.ServiceKey) bool {
	if l.cached == nil {
		return false
	}
	var shown []netip.Addr
	if svc := l.cached(key); svc != nil {
		for _, a := range servicerecord.IngressOf(svc) {
			holds := slices.Contains(l.alloc.Holders(a), key)
			if !l.adoptionDone {
				holds = slices.ContainsFunc(l.settings.HeldBy(svc), func(h pools.Address) bool { return h.Addr == a })
			}
			if !holds || svc.DeletionTimestamp != nil {
				shown = append(shown, a)
			}
		}
		shown = append(shown, watch.Addresses(svc.Spec.ExternalIPs)...)
	}
	return l.alloc.Withhold(pools.Refusal{Rule: pools.RuleService, Of: key.String()}, shown, l.Now())
}

// shown records what the Service shows.
func (l *Ledger) shown(svc *v1.Service) {
	l.change(func() bool { return l.withholdShown(servicerecord.KeyOf(svc)) })
}

// Withhold sets the addresses of what a refusal names: see pools.Allocator.Withhold.
func (l *Ledger) Withhold(r pools.Refusal, addrs []netip.Addr) {
	l.change(func() bool { return l.alloc.Withhold(r, addrs, l.Now()) })
}

func (l *Ledger) isForeign(svc *v1.Service) bool {
	class := svc.Spec.LoadBalancerClass
	switch {
	case servicerecord.OutcomeIn(svc).Record != "" || servicerecord.HasFinalizer(svc, servicerecord.Finalizer):
		return false
	case class != nil:
		return *class != l.settings.Class
	case l.settings.OnlyClass:
		return true
	}
	return len(svc.Status.LoadBalancer.Ingress) > 0 && !slices.ContainsFunc(servicerecord.IngressOf(svc), l.alloc.Has)
}

func (l *Ledger) WaitReady(ctx context.Context) error {
	select {
	case <-l.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Adopted reports whether recorded addresses have been adopted.
func (l *Ledger) Adopted() bool {
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}
