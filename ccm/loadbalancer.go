package ccm

import (
	"context"

	v1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

// loadBalancer is cloudprovider.LoadBalancer, called by the service controller.
type loadBalancer struct {
	registrar *registrar
}

// GetLoadBalancer returns what the Service holds, by its name. The load balancer exists as long as the Service
// has any state here, also while it only waits: otherwise the service controller would never report its deletion. It
// also exists for a Service that stopped being a load balancer while no replica ran: IronLB's record is still on the
// object.
func (b *loadBalancer) GetLoadBalancer(ctx context.Context, _ string, svc *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	settings, ledger := b.registrar.settings, b.registrar.ledger
	lease, exists, err := ledger.lease(ctx, svc)
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil {
		exists = exists || recorded(svc)
	}
	if err != nil || !exists || hasClass(svc) { // served by the class controller now, whatever the class
		return nil, false, err
	}
	return &v1.LoadBalancerStatus{Ingress: settings.outcomeOf(svc, lease, "", "").ingress}, true, nil
}

// GetLoadBalancerName is only used in messages.
func (b *loadBalancer) GetLoadBalancerName(_ context.Context, _ string, svc *v1.Service) string {
	return keyOf(svc).String()
}

// EnsureLoadBalancer assigns addresses to the Service and writes status, annotation and condition in one patch. It
// always returns ImplementedElsewhere, so that the service controller leaves the status alone: see
// docs/design/ccm-pending.md.
func (b *loadBalancer) EnsureLoadBalancer(ctx context.Context, _ string, svc *v1.Service, _ []*v1.Node) (*v1.LoadBalancerStatus, error) {
	err := b.registrar.retryOnConflict(ctx, svc, func(ctx context.Context, now *v1.Service) error {
		if now != svc && !b.registrar.settings.classless(now) {
			return nil // the cleanup or the class controller handles that change
		}
		return b.registrar.serve(ctx, now)
	})
	if err != nil {
		return nil, err
	}
	return nil, cloudprovider.ImplementedElsewhere
}

// UpdateLoadBalancer does nothing: the set of nodes does not change an address, and the placement controller watches
// nodes itself. ImplementedElsewhere saves an Event per Service and node change.
func (b *loadBalancer) UpdateLoadBalancer(context.Context, string, *v1.Service, []*v1.Node) error {
	return cloudprovider.ImplementedElsewhere
}

// EnsureLoadBalancerDeleted frees what the Service holds or waits for. The service controller calls it for a Service
// that is being deleted or is no longer a load balancer. For a deleted Service it passes the last known object.
func (b *loadBalancer) EnsureLoadBalancerDeleted(ctx context.Context, _ string, svc *v1.Service) error {
	return b.registrar.retryOnConflict(ctx, svc, func(ctx context.Context, now *v1.Service) error {
		if now != svc && balanced(now) {
			return nil // a load balancer again: it keeps its addresses
		}
		return b.ensureDeleted(ctx, now)
	})
}

func (b *loadBalancer) ensureDeleted(ctx context.Context, svc *v1.Service) error {
	settings, ledger := b.registrar.settings, b.registrar.ledger
	switch {
	case hasClass(svc):
		return nil // served by the class controller now, whatever the class
	case svc.DeletionTimestamp != nil && len(svc.Finalizers) <= 1 || settings.classless(svc): // the object is deleted now
		return ledger.release(ctx, keyOf(svc), svc.UID)
	}
	return b.registrar.clear(ctx, svc)
}
