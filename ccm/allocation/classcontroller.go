package allocation

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	servicehelper "k8s.io/cloud-provider/service/helpers"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// Back-off of a failing Service, as in the service controller.
const (
	classFirstRetry = 5 * time.Second
	classLastRetry  = 5 * time.Minute
)

// classController serves the Services of IronLB's class, which the service controller ignores.
type classController struct {
	log       *slog.Logger
	registrar *Registrar
	services  corelisters.ServiceLister
	queue     workqueue.TypedRateLimitingInterface[pools.ServiceKey]
	workers   int
}

func newClassController(r *Registrar, services corelisters.ServiceLister, workers int) *classController {
	return &classController{
		log: r.Log, registrar: r, services: services, workers: workers,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[pools.ServiceKey](classFirstRetry, classLastRetry),
			workqueue.TypedRateLimitingQueueConfig[pools.ServiceKey]{Name: "ironlb-class"},
		),
	}
}

// concerns reports whether this controller must serve, keep or clean up the Service. It skips the Services of the
// service controller: they have that controller's finalizer.
func (c *classController) concerns(svc *v1.Service) bool {
	r := c.registrar
	unowned := svc.Spec.Type != v1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil &&
		servicerecord.Recorded(svc) && !servicehelper.HasLBFinalizer(svc)
	return r.settings.Classed(svc) || servicerecord.HasFinalizer(svc, servicerecord.Finalizer) || unowned ||
		!r.settings.Classless(svc) && (r.settings.OnlyClass || servicerecord.Balanced(svc)) && (servicerecord.Recorded(svc) || r.ledger.hasEntry(svc))
}

// handler queues the Services of this controller. A change of the status alone counts only on Services that are not
// served: see divergence for the others.
func (c *classController) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { c.enqueue(o.(*v1.Service)) },
		UpdateFunc: func(b, a any) {
			before, after := b.(*v1.Service), a.(*v1.Service)
			if before.UID != after.UID || !equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
				!maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations) ||
				before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || servicerecord.HasFinalizer(before, servicerecord.Finalizer) != servicerecord.HasFinalizer(after, servicerecord.Finalizer) ||
				!c.registrar.settings.Wants(after) && !equality.Semantic.DeepEqual(before.Status.LoadBalancer, after.Status.LoadBalancer) {
				c.enqueue(after)
			}
		},
	}
}

func (c *classController) enqueue(svc *v1.Service) {
	if c.concerns(svc) {
		c.queue.Add(servicerecord.KeyOf(svc))
	}
}

// Run returns when ctx ends and the workers are done.
func (c *classController) Run(ctx context.Context) error {
	if c.registrar.ledger.WaitReady(ctx) != nil {
		return nil
	}
	var workers sync.WaitGroup
	for range c.workers {
		workers.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	workers.Wait()
	return nil
}

// next serves one Service of the queue, which never gives the same one to two workers. False: the queue is shut down.
func (c *classController) next(ctx context.Context) bool {
	key, quit := c.queue.Get()
	if quit {
		return false
	}
	defer c.queue.Done(key)
	svc, err := c.services.Services(key.Namespace).Get(key.Name)
	if err == nil {
		err = c.sync(ctx, svc)
	}
	switch {
	case err == nil || apierrors.IsNotFound(err):
		c.queue.Forget(key)
	case ctx.Err() == nil:
		c.queue.AddRateLimited(key)
		c.log.Warn("Service not served", "service", key, "error", err, "tries", c.queue.NumRequeues(key))
		c.registrar.events.Eventf(svc, v1.EventTypeWarning, "SyncLoadBalancerFailed", "Error syncing load balancer: %v", err)
	}
	return true
}

// sync serves the Service, keeps it as it is, or cleans it up.
func (c *classController) sync(ctx context.Context, svc *v1.Service) error {
	return c.registrar.retryOnConflict(ctx, svc, c.decide)
}

func (c *classController) decide(ctx context.Context, svc *v1.Service) error {
	r := c.registrar
	switch {
	case r.settings.Classed(svc):
		return r.serve(ctx, svc)
	case r.settings.Classless(svc): // the service controller now owns it and what it holds
		return c.dropFinalizer(ctx, svc)
	case !c.concerns(svc):
		return nil
	case servicerecord.Balanced(svc):
		return r.keepPreviouslyManaged(ctx, svc)
	}
	return r.cleanUp(ctx, svc)
}

// dropFinalizer removes IronLB's finalizer, if present.
func (c *classController) dropFinalizer(ctx context.Context, svc *v1.Service) error {
	if !servicerecord.HasFinalizer(svc, servicerecord.Finalizer) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": svc.UID, "resourceVersion": svc.ResourceVersion, "$deleteFromPrimitiveList/finalizers": []string{servicerecord.Finalizer},
	}})
	if err == nil {
		have, _ := c.registrar.ledger.newest(svc)
		_, err = c.registrar.patch(ctx, svc, have, patch)
	}
	if err != nil && !servicerecord.Gone(err) {
		return fmt.Errorf("removing the finalizer from Service %s: %w", servicerecord.KeyOf(svc), err)
	}
	return nil
}
