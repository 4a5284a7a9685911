package ccm

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools"
)

// wakeService requeues the Service in the controller that serves it.
func (c *Cloud) wakeService(key pools.ServiceKey) {
	svc, err := c.core.Core().V1().Services().Lister().Services(key.Namespace).Get(key.Name)
	switch {
	case err != nil: // deleted
		c.ledger.declined(key)
	case c.settings.classless(svc):
		c.requeuer.Wake(svc)
	default:
		c.classes.queue.Add(key)
	}
}

// listServices reads the Services that show an address or have IronLB's record. It reads from the API server, not from
// a cache, so that it includes everything that an earlier leader wrote.
func (c *Cloud) listServices(ctx context.Context) ([]v1.Service, error) {
	const page = 500
	var all []v1.Service
	opts := metav1.ListOptions{Limit: page}
	for {
		list, err := c.registrar.api.Services("").List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("listing Services: %w", err)
		}
		for i := range list.Items {
			if svc := &list.Items[i]; len(svc.Status.LoadBalancer.Ingress) > 0 || recorded(svc) {
				svc.ManagedFields = nil
				all = append(all, *svc)
			}
		}
		if list.Continue == "" {
			return all, nil
		}
		opts.Continue = list.Continue
	}
}
