package virtualip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// policies are the pools by name, for placement.
type policies map[string]*v1alpha1.IPAddressPool

func (p *Placer) policies(ctx context.Context) (policies, error) {
	var list v1alpha1.IPAddressPoolList
	if err := p.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing IPAddressPools from the cache: %w", err)
	}
	of := make(policies, len(list.Items))
	for i := range list.Items {
		of[list.Items[i].Name] = &list.Items[i]
	}
	return of, nil
}

// labels returns the labels of the pool, none if it is deleted.
func (of policies) labels(pool string) map[string]string {
	if obj := of[pool]; obj != nil {
		return obj.Labels
	}
	return nil
}

// request returns the value of the pool's annotation if it has not been carried out.
func request(obj *v1alpha1.IPAddressPool) string {
	if obj == nil || obj.Annotations[v1alpha1.AnnotationRebalance] == obj.Status.Rebalanced {
		return ""
	}
	return obj.Annotations[v1alpha1.AnnotationRebalance]
}

// request returns the request to move the VirtualIP: from its own annotation (the VirtualIP may be absent), or from a
// pool of its addresses. Empty: there is none.
func (of policies) request(vip *v1alpha1.VirtualIP, addresses []pools.Address) string {
	if vip != nil && vip.Annotations[v1alpha1.AnnotationRebalance] != "" {
		return vip.Name + "=" + vip.Annotations[v1alpha1.AnnotationRebalance]
	}
	for _, a := range addresses {
		if value := request(of[a.Pool]); value != "" {
			return a.Pool + "=" + value
		}
	}
	return ""
}

// gradual reports whether all the pools of the addresses are rebalanced without a request, and their greatest delay.
func (of policies) gradual(addresses []pools.Address) (delay time.Duration, yes bool) {
	for _, a := range addresses {
		obj := of[a.Pool]
		if obj == nil || obj.Spec.Rebalance != v1alpha1.RebalanceGradual {
			return 0, false
		}
		if d := obj.Spec.PreemptDelay; d != nil {
			delay = max(delay, d.Duration)
		} else {
			delay = max(delay, v1alpha1.DefaultPreemptDelay)
		}
	}
	return delay, true
}

// acknowledge records that requests have been carried out, once nothing improves any more.
func (p *Placer) acknowledge(ctx context.Context, of policies, have map[string]*v1alpha1.VirtualIP) error {
	if !p.mover.done {
		return nil
	}
	var errs []error
	for name, vip := range have {
		if value := vip.Annotations[v1alpha1.AnnotationRebalance]; value != "" && p.mover.requested[name] {
			errs = append(errs, p.writer.acknowledge(ctx, vip))
		}
	}
	for name, obj := range of {
		value := request(obj)
		if value == "" {
			continue
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"rebalanced": value}})
		if err == nil {
			err = p.client.Status().Patch(ctx, obj.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
		}
		if client.IgnoreNotFound(err) != nil {
			err = fmt.Errorf("writing status.rebalanced of IPAddressPool %s: %w", name, err)
			if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
				err = fmt.Errorf("%w (apply deploy/ironlb.yaml, or upgrade the Helm release)", err)
			}
			errs = append(errs, err)
			continue
		}
		p.log.Info("pool rebalanced", "pool", name, "request", value)
	}
	return errors.Join(errs...)
}
