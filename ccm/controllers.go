package ccm

import (
	"context"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Names of IronLB's controllers, for --controllers.
const (
	PoolController      = "ironlb-pool-controller"
	ClassController     = "ironlb-class-controller"
	PlacementController = "ironlb-placement-controller"
	BGPController       = "ironlb-bgp-controller"
)

// Controllers returns the supported controllers, all on by default. The other controllers of cloud-provider are
// excluded: they would manage nodes and routes.
func Controllers() map[string]app.ControllerInitFuncConstructor {
	client := app.ControllerInitContext{ClientName: Name}
	return map[string]app.ControllerInitFuncConstructor{
		names.ServiceLBController: {InitContext: client, Constructor: startServiceController},
		PoolController:            {InitContext: client, Constructor: startPoolController},
		ClassController:           {InitContext: client, Constructor: startClassController},
		PlacementController:       {InitContext: client, Constructor: startPlacementController},
		BGPController:             {InitContext: client, Constructor: startBGPController},
	}
}

// startPoolController starts the feeds of the ledger and the writer of the pools' status.
func startPoolController(_ app.ControllerInitContext, _ *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, _ controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		services := c.core.Core().V1().Services()
		specs := &poolSpecs{
			log: c.log, ledger: c.ledger, reader: c.client, services: c.listServices,
			started: c.requeuer.Start, revisit: c.requeuer.Revisit, unconfirmed: c.registrar.unconfirmed, release: c.registrar.releaseUnconfirmed,
			liveness: c.liveness, trigger: make(chan struct{}, 1), change: make(chan struct{}, 1),
		}
		status := &poolStatus{log: c.log, ledger: c.ledger, specs: specs, client: c.client, liveness: c.liveness,
			trigger: make(chan struct{}, 1), events: c.events, published: map[types.UID]string{}}
		synced, err := c.onChange(ctx, &v1alpha1.IPAddressPool{}, func() {
			trigger(specs.trigger)
			trigger(status.trigger)
		})
		if err != nil {
			return nil, false, err
		}
		namespaces, err := c.watchNamespaces()
		if err != nil {
			return nil, false, err
		}
		nodes, err := c.watchNodes()
		if err != nil {
			return nil, false, err
		}
		specs.synced = []cache.InformerSynced{synced, namespaces, nodes, services.Informer().HasSynced}
		if _, err := services.Informer().AddEventHandler(c.divergence.handler(ctx)); err != nil {
			return nil, false, fmt.Errorf("watching Services: %w", err)
		}
		c.ledger.poolsChanged = func() {
			trigger(status.trigger)
			trigger(specs.change)
		}
		if err := c.startWarnings(ctx); err != nil {
			return nil, false, err
		}
		c.pools.Store(status)
		c.run(ctx, PoolController, specs.Run, status.Run)
		return checked{PoolController, c.liveness}, true, nil
	}
}

// watchNamespaces updates the ledger's namespaces, for the pools' namespace selectors.
func (c *Cloud) watchNamespaces() (cache.InformerSynced, error) {
	reg, err := c.core.Core().V1().Namespaces().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { c.ledger.setNamespace(o.(*v1.Namespace).Name, o.(*v1.Namespace).Labels) },
		UpdateFunc: func(before, after any) {
			if ns := after.(*v1.Namespace); !maps.Equal(before.(*v1.Namespace).Labels, ns.Labels) {
				c.ledger.setNamespace(ns.Name, ns.Labels)
			}
		},
		DeleteFunc: func(o any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				c.ledger.deleteNamespace(key)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching Namespaces: %w", err)
	}
	return reg.HasSynced, nil
}

// startClassController starts the controller of the Services of IronLB's class.
func startClassController(_ app.ControllerInitContext, _ *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, _ controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		if _, err := c.core.Core().V1().Services().Informer().AddEventHandler(c.classes.handler()); err != nil {
			return nil, false, fmt.Errorf("watching Services: %w", err)
		}
		c.run(ctx, ClassController, c.classes.Run)
		return nil, true, nil
	}
}

// startPlacementController starts the writer of VirtualIPs.
func startPlacementController(_ app.ControllerInitContext, _ *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, _ controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		services, nodes := c.core.Core().V1().Services(), c.core.Core().V1().Nodes()
		p := newPlacer(c)
		c.outage.setOnRecovery(func() { trigger(p.trigger) })
		for _, inf := range []cache.SharedIndexInformer{services.Informer(), nodes.Informer()} {
			if _, err := inf.AddEventHandler(p.handler()); err != nil {
				return nil, false, fmt.Errorf("watching Services and Nodes: %w", err)
			}
			p.synced = append(p.synced, inf.HasSynced)
		}
		for _, kind := range []client.Object{&v1alpha1.L2Advertisement{}, &v1alpha1.VirtualIP{}, &v1alpha1.IPAddressPool{}} {
			synced, err := c.watch(ctx, kind, p.handler())
			if err != nil {
				return nil, false, err
			}
			p.synced = append(p.synced, synced)
		}
		synced, err := c.watch(ctx, &v1alpha1.SpeakerStatus{}, p.speakerHandler())
		if err != nil {
			return nil, false, err
		}
		p.synced = append(p.synced, synced)
		c.run(ctx, PlacementController, p.Run)
		return nil, true, nil
	}
}

// startBGPController starts the controller that aggregates the speakers' BGP sessions and reports unusable BGP objects.
func startBGPController(_ app.ControllerInitContext, _ *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, _ controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		services, nodes := c.core.Core().V1().Services(), c.core.Core().V1().Nodes()
		b := newBGPStatus(c.log, c.events, c.client, services.Lister(), nodes.Lister())
		b.liveness = c.liveness
		for _, inf := range []cache.SharedIndexInformer{services.Informer(), nodes.Informer()} {
			reg, err := inf.AddEventHandler(b.handler())
			if err != nil {
				return nil, false, fmt.Errorf("watching Services and Nodes: %w", err)
			}
			b.synced = append(b.synced, reg.HasSynced)
		}
		for _, kind := range []client.Object{
			&v1alpha1.BGPPeer{}, &v1alpha1.BGPAdvertisement{}, &v1alpha1.BFDProfile{}, &v1alpha1.Community{}, &v1alpha1.SpeakerStatus{}, &v1alpha1.IPAddressPool{},
		} {
			synced, err := c.watch(ctx, kind, b.handler())
			if err != nil {
				return nil, false, err
			}
			b.synced = append(b.synced, synced)
		}
		c.run(ctx, BGPController, b.Run)
		return nil, true, nil
	}
}

// onChange calls f after every change of the kind. It returns the sync function of the handler.
func (c *Cloud) onChange(ctx context.Context, kind client.Object, f func()) (cache.InformerSynced, error) {
	return c.watch(ctx, kind, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { f() },
		UpdateFunc: func(any, any) { f() },
		DeleteFunc: func(any) { f() },
	})
}

// watch registers the handler for changes of the kind. It returns the sync function of the handler.
func (c *Cloud) watch(ctx context.Context, kind client.Object, handler cache.ResourceEventHandler) (cache.InformerSynced, error) {
	inf, err := c.kinds.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", kind, err)
	}
	reg, err := inf.AddEventHandler(handler)
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", kind, err)
	}
	return reg.HasSynced, nil
}

// run starts the tasks of a controller. A failed task is a programmer's error or a lost cache: the process ends, so
// that the other replica takes over.
func (c *Cloud) run(ctx context.Context, controller string, tasks ...func(context.Context) error) {
	for _, task := range tasks {
		go func() {
			if err := task(ctx); err != nil && ctx.Err() == nil {
				c.fatal(fmt.Errorf("%s: %w", controller, err))
			}
		}()
	}
}

// serviceMatters reports whether the change is relevant to placement.
func serviceMatters(before, after *v1.Service) bool {
	return before.Spec.Type != after.Spec.Type ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		before.Annotations[v1alpha1.AnnotationAllocatedFrom] != after.Annotations[v1alpha1.AnnotationAllocatedFrom] ||
		!maps.Equal(before.Labels, after.Labels) || !sameIngress(before.Status.LoadBalancer.Ingress, after.Status.LoadBalancer.Ingress)
}

func sameIngress(a, b []v1.LoadBalancerIngress) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].IP != b[i].IP {
			return false
		}
	}
	return true
}
