package ccm

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// loadBalancer is cloudprovider.LoadBalancer: what the service controller asks.
type loadBalancer struct {
	ledger   *ledger
	services corev1.ServicesGetter
}

// GetLoadBalancer says what the Service holds, from its name alone. It exists as long as anything of it is left, also
// while it only waits: else the service controller would never tell us that it is gone.
func (b *loadBalancer) GetLoadBalancer(ctx context.Context, _ string, svc *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	lease, exists, err := b.ledger.lease(ctx, keyOf(svc))
	if err != nil || !exists {
		return nil, false, err
	}
	return statusOf(lease), true, nil
}

// GetLoadBalancerName is only used in messages.
func (b *loadBalancer) GetLoadBalancerName(_ context.Context, _ string, svc *v1.Service) string {
	return keyOf(svc).String()
}

// EnsureLoadBalancer gives the Service its addresses and returns the status to write.
//
// A Service that holds nothing and must wait is answered with ImplementedElsewhere, which makes the service controller
// leave status, Events and queue alone; the ledger wakes it when something it waits for has changed. See
// docs/design/ccm-pending.md.
func (b *loadBalancer) EnsureLoadBalancer(ctx context.Context, _ string, svc *v1.Service, _ []*v1.Node) (*v1.LoadBalancerStatus, error) {
	d, err := b.ledger.assign(ctx, svc)
	if err != nil {
		return nil, err
	}
	if len(d.Lease) == 0 {
		if len(heldBy(svc)) == 0 {
			return nil, cloudprovider.ImplementedElsewhere
		}
		return statusOf(nil), nil // what it shows belongs to another Service now
	}
	// Before the status: an address without the record of its pool would be of unknown origin after a restart.
	if err := b.record(ctx, svc, d.Lease); err != nil {
		return nil, err
	}
	return statusOf(d.Lease), nil
}

// record writes the pools of the lease to the Service's annotation, if they are not there yet. No lease removes it.
func (b *loadBalancer) record(ctx context.Context, svc *v1.Service, lease []pools.Address) error {
	from := allocatedFrom(lease)
	if svc.Annotations[v1alpha1.AnnotationAllocatedFrom] == from {
		return nil
	}
	value := &from
	if from == "" {
		value = nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"uid":         svc.UID, // not to a Service of the same name that came after
			"annotations": map[string]*string{v1alpha1.AnnotationAllocatedFrom: value},
		},
	})
	if err != nil {
		return fmt.Errorf("recording the pools of Service %s: %w", keyOf(svc), err)
	}
	_, err = b.services.Services(svc.Namespace).Patch(ctx, svc.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("recording the pools of Service %s: %w", keyOf(svc), err)
	}
	return nil
}

// UpdateLoadBalancer has nothing to do: which nodes there are does not change an address, and the placement controller
// watches them itself. ImplementedElsewhere saves an Event per Service and node change.
func (b *loadBalancer) UpdateLoadBalancer(context.Context, string, *v1.Service, []*v1.Node) error {
	return cloudprovider.ImplementedElsewhere
}

// EnsureLoadBalancerDeleted frees what the Service holds or waits for.
func (b *loadBalancer) EnsureLoadBalancerDeleted(ctx context.Context, _ string, svc *v1.Service) error {
	if err := b.ledger.release(ctx, keyOf(svc)); err != nil {
		return err
	}
	if svc.DeletionTimestamp != nil {
		return nil
	}
	err := b.record(ctx, svc, nil)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or another one of the same name
	}
	return err
}
