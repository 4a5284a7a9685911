package ccm

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

	"github.com/ironlb/ironlb/pools"
)

// finalizer keeps a Service of our class until its address is withdrawn. The service controller's own is another one.
const finalizer = "ironlb.io/load-balancer"

// Back-off of a Service that fails, as the service controller has it.
const (
	classFirstRetry = 5 * time.Second
	classLastRetry  = 5 * time.Minute
)

// classController serves the Services of our class, which the service controller does not touch.
type classController struct {
	log       *slog.Logger
	registrar *registrar
	services  corelisters.ServiceLister
	queue     workqueue.TypedRateLimitingInterface[pools.ServiceKey]
	workers   int
}

func newClassController(r *registrar, services corelisters.ServiceLister, workers int) *classController {
	return &classController{
		log: r.log, registrar: r, services: services, workers: workers,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[pools.ServiceKey](classFirstRetry, classLastRetry),
			workqueue.TypedRateLimitingQueueConfig[pools.ServiceKey]{Name: "ironlb-class"},
		),
	}
}

// concerns says whether the Service is ours to serve, or ours to clean up.
func (c *classController) concerns(svc *v1.Service) bool {
	return c.registrar.settings.classed(svc) || has(svc, finalizer)
}

// handler queues what is ours. A change of the status alone is none: see drift.
func (c *classController) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { c.see(o.(*v1.Service)) },
		UpdateFunc: func(b, a any) {
			before, after := b.(*v1.Service), a.(*v1.Service)
			if before.UID != after.UID || !equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
				!maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations) ||
				before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || has(before, finalizer) != has(after, finalizer) {
				c.see(after)
			}
		},
	}
}

func (c *classController) see(svc *v1.Service) {
	if c.concerns(svc) {
		c.queue.Add(keyOf(svc))
	}
}

// Run returns when ctx ends and the workers are done.
func (c *classController) Run(ctx context.Context) error {
	if c.registrar.ledger.waitReady(ctx) != nil {
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

// sync serves the Service or cleans it up.
func (c *classController) sync(ctx context.Context, svc *v1.Service) error {
	r := c.registrar
	switch {
	case r.settings.classed(svc):
		if err := c.setFinalizer(ctx, svc, true); err != nil {
			if gone(err) {
				return nil
			}
			return err
		}
		return r.serve(ctx, svc)
	case !has(svc, finalizer):
		return nil
	case r.settings.classless(svc): // the service controller's now: what it holds goes with it
		return c.setFinalizer(ctx, svc, false)
	}
	return r.clear(ctx, svc, finalizer)
}

// setFinalizer adds or removes our finalizer, if it is not so already.
func (c *classController) setFinalizer(ctx context.Context, svc *v1.Service, want bool) error {
	if has(svc, finalizer) == want {
		return nil
	}
	field := "finalizers"
	if !want {
		field = "$deleteFromPrimitiveList/finalizers"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": svc.UID, field: []string{finalizer}}})
	if err == nil {
		_, err = c.registrar.patch(ctx, svc, patch)
	}
	if err != nil {
		return fmt.Errorf("setting the finalizer of Service %s: %w", keyOf(svc), err)
	}
	return nil
}
