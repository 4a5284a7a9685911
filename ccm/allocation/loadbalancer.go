package allocation

import (
	"context"

	v1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ironlb/ironlb/ccm/servicerecord"
)

// LoadBalancer is cloudprovider.LoadBalancer, called by the service controller.
type LoadBalancer struct {
	Registrar *Registrar
}

// GetLoadBalancer returns what the Service holds, by its name. The load balancer exists as long as the Service
// has any state here, also while it only waits: otherwise the service controller would never report its deletion. It
// also exists for a Service that stopped being a load balancer while no replica ran: IronLB's record is still on the
// object.
func (b *LoadBalancer) GetLoadBalancer(ctx context.Context, _ string, svc *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	settings, ledger := b.Registrar.settings, b.Registrar.ledger
	lease, exists, err := ledger.lease(ctx, svc)
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil {
		exists = exists || servicerecord.Recorded(svc)
	}
	if err != nil || !exists || servicerecord.HasClass(svc) { // served by the class controller now, whatever the class
		return nil, false, err
	}
	return &v1.LoadBalancerStatus{Ingress: settings.OutcomeOf(svc, lease, "", "").Ingress}, true, nil
}

// GetLoadBalancerName is only used in messages.
func (b *LoadBalancer) GetLoadBalancerName(_ context.Context, _ string, svc *v1.Service) string {
	return servicerecord.KeyOf(svc).String()
}

// EnsureLoadBalancer assigns addresses to the Service and writes status, annotation and condition in one patch. It
// always returns ImplementedElsewhere, so that the service controller leaves the status alone: see
// docs/design/ccm-pending.md.
func (b *LoadBalancer) EnsureLoadBalancer(ctx context.Context, _ string, svc *v1.Service, _ []*v1.Node) (*v1.LoadBalancerStatus, error) {
	err := b.Registrar.retryOnConflict(ctx, svc, func(ctx context.Context, now *v1.Service) error {
		if now != svc && !b.Registrar.settings.Classless(now) {
			return nil // the cleanup or the class controller handles that change
		}
		return b.Registrar.serve(ctx, now)
	})
	if err != nil {
		return nil, err
	}
	return nil, cloudprovider.ImplementedElsewhere
}

// UpdateLoadBalancer does nothing: the set of nodes does not change an address, and the placement controller watches
// nodes itself. ImplementedElsewhere saves an Event per Service and node change.
func (b *LoadBalancer) UpdateLoadBalancer(context.Context, string, *v1.Service, []*v1.Node) error {
	return cloudprovider.ImplementedElsewhere
}

// EnsureLoadBalancerDeleted frees what the Service holds or waits for. The service controller calls it for a Service
// that is being deleted or is no longer a load balancer. For a deleted Service it passes the last known object.
func (b *LoadBalancer) EnsureLoadBalancerDeleted(ctx context.Context, _ string, svc *v1.Service) error {
	return b.Registrar.retryOnConflict(ctx, svc, func(ctx context.Context, now *v1.Service) error {
		if now != svc && servicerecord.Balanced(now) {
			return nil // a load balancer again: it keeps its addresses
		}
		return b.ensureDeleted(ctx, now)
	})
}

func (b *LoadBalancer) ensureDeleted(ctx context.Context, svc *v1.Service) error {
	settings, ledger := b.Registrar.settings, b.Registrar.ledger
	switch {
	case servicerecord.HasClass(svc):
		return nil // served by the class controller now, whatever the class
	case svc.DeletionTimestamp != nil && len(svc.Finalizers) <= 1 || settings.Classless(svc): // the object is deleted now
		return ledger.Release(ctx, servicerecord.KeyOf(svc), svc.UID)
	}
	return b.Registrar.clear(ctx, svc)
}
