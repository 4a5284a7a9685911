package ccm

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/ironlb/ironlb/pools"
)

// wakeService has the controller that serves the Service look at it again.
func (c *Cloud) wakeService(key pools.ServiceKey) {
	svc, err := c.core.Core().V1().Services().Lister().Services(key.Namespace).Get(key.Name)
	switch {
	case err != nil: // gone
	case c.settings.classless(svc):
		c.waker.Wake(svc)
	default:
		c.classes.queue.Add(key)
	}
}

// listServices reads all Services from the API server, not from a cache: nothing that an earlier leader wrote may be missing.
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
			if svc := &list.Items[i]; len(svc.Status.LoadBalancer.Ingress) > 0 {
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

// drift has a Service looked at again whose status somebody else changed, more and more seldom: two controllers that both
// want it must not outdo one another.
type drift struct {
	registrar *registrar
	wake      func(pools.ServiceKey)
	limiter   workqueue.TypedRateLimiter[pools.ServiceKey]
}

func newDrift(r *registrar, wake func(pools.ServiceKey)) *drift {
	return &drift{registrar: r, wake: wake, limiter: workqueue.NewTypedItemExponentialFailureRateLimiter[pools.ServiceKey](100*time.Millisecond, 5*time.Minute)}
}

// handler watches all Services, and frees what one held that went without its finalizers.
func (d *drift) handler(ctx context.Context) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, o any) {
			if svc := o.(*v1.Service); d.registrar.drifted(svc) {
				key := keyOf(svc)
				time.AfterFunc(d.limiter.When(key), func() { d.wake(key) })
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			svc, ok := o.(*v1.Service)
			if !ok {
				return
			}
			d.limiter.Forget(keyOf(svc))
			d.registrar.ledger.vanish(ctx, keyOf(svc), svc.UID)
		},
	}
}
