package ccm

import (
	"context"

	v1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

// loadBalancer is cloudprovider.LoadBalancer: what the service controller asks.
type loadBalancer struct {
	registrar *registrar
}

// GetLoadBalancer says what the Service holds, from its name alone. It exists as long as anything of it is left, also
// while it only waits: else the service controller would never tell us that it is gone. So does what stopped being a load
// balancer while no replica ran: our record is still on the object.
func (b *loadBalancer) GetLoadBalancer(ctx context.Context, _ string, svc *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	settings, ledger := b.registrar.settings, b.registrar.ledger
	lease, exists, err := ledger.lease(ctx, svc)
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil {
		exists = exists || recorded(svc)
	}
	if err != nil || !exists || hasClass(svc) { // the class controller's now, whatever the class
		return nil, false, err
	}
	return &v1.LoadBalancerStatus{Ingress: settings.outcomeOf(svc, lease, "", "").ingress}, true, nil
}

// GetLoadBalancerName is only used in messages.
func (b *loadBalancer) GetLoadBalancerName(_ context.Context, _ string, svc *v1.Service) string {
	return keyOf(svc).String()
}

// EnsureLoadBalancer gives the Service its addresses and writes status, annotation and condition in one patch. The answer
// is always ImplementedElsewhere, which makes the service controller leave the status to us: see
// docs/design/ccm-pending.md.
func (b *loadBalancer) EnsureLoadBalancer(ctx context.Context, _ string, svc *v1.Service, _ []*v1.Node) (*v1.LoadBalancerStatus, error) {
	err := b.registrar.retryOnConflict(ctx, svc, func(ctx context.Context, now *v1.Service) error {
		if now != svc && !b.registrar.settings.classless(now) {
			return nil // that change of it comes to who cleans up, or to the class controller
		}
		return b.registrar.serve(ctx, now)
	})
	if err != nil {
		return nil, err
	}
	return nil, cloudprovider.ImplementedElsewhere
}

// UpdateLoadBalancer has nothing to do: which nodes there are does not change an address, and the placement controller
// watches them itself. ImplementedElsewhere saves an Event per Service and node change.
func (b *loadBalancer) UpdateLoadBalancer(context.Context, string, *v1.Service, []*v1.Node) error {
	return cloudprovider.ImplementedElsewhere
}

// EnsureLoadBalancerDeleted frees what the Service holds or waits for. The service controller calls it for a Service that
// is being deleted or is a load balancer no more, and, with the Service as it last was, for one that is gone.
func (b *loadBalancer) EnsureLoadBalancerDeleted(ctx context.Context, _ string, svc *v1.Service) error {
	return b.registrar.retryOnConflict(ctx, svc, func(ctx context.Context, now *v1.Service) error {
		if now != svc && balanced(now) {
			return nil // again: it keeps what it was given
		}
		return b.ensureDeleted(ctx, now)
	})
}

func (b *loadBalancer) ensureDeleted(ctx context.Context, svc *v1.Service) error {
	settings, ledger := b.registrar.settings, b.registrar.ledger
	switch {
	case hasClass(svc):
		return nil // the class controller's now, whatever the class
	case svc.DeletionTimestamp != nil && len(svc.Finalizers) <= 1 || settings.classless(svc): // the object goes now
		return ledger.release(ctx, keyOf(svc), svc.UID)
	}
	return b.registrar.clear(ctx, svc)
}
