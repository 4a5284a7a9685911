package ccm

import (
	"context"
	"fmt"

	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"

	"github.com/ironlb/ironlb/ccm/addresspool"
	"github.com/ironlb/ironlb/ccm/bgpstatus"
	"github.com/ironlb/ironlb/ccm/virtualip"
	"github.com/ironlb/ironlb/ccm/warnings"
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

// startServiceController starts cloud-provider's service controller, for the Services without a class.
func startServiceController(init app.ControllerInitContext, config *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, manager controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		if c.settings.OnlyClass {
			return nil, false, nil
		}
		s, err := c.services.ServiceController(c, config.ClientBuilder.ClientOrDie(init.ClientName),
			config.SharedInformers.Core().V1().Nodes(), config.ComponentConfig.KubeCloudShared.ClusterName)
		if err != nil {
			return nil, false, err
		}
		go s.Run(ctx, int(config.ComponentConfig.ServiceController.ConcurrentServiceSyncs), manager.ControllerManagerMetrics)
		return nil, true, nil
	}
}

// startPoolController starts the feeds of the ledger, the writer of the pools' status, and the warnings.
func startPoolController(_ app.ControllerInitContext, config *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, _ controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		synced, err := c.services.Watch(ctx, c.core)
		if err != nil {
			return nil, false, err
		}
		published, err := warnings.New(ctx, warnings.Config{
			Log: c.log, Events: c.events, Settings: &c.settings.Settings, Allocation: c.services.Ledger,
			Core: c.core, Kinds: c.kinds, Endpoints: c.endpoints, Unserved: c.unserved, API: config.ClientBuilder.ClientOrDie(Name).CoreV1(),
		})
		if err != nil {
			return nil, false, err
		}
		specs, status, changed, err := addresspool.New(ctx, addresspool.Config{
			Log: c.log, Events: c.events, Client: c.client, Services: c.services, Liveness: c.liveness,
			Synced: append(synced, published.Withheld()...),
		}, c.services.Ledger, c.kinds)
		if err != nil {
			return nil, false, err
		}
		c.services.OnPoolsChanged(changed)
		c.pools.Store(status)
		c.run(ctx, PoolController, specs.Run, status.Run, published.Run)
		return checked{PoolController, c.liveness}, true, nil
	}
}

// startClassController starts the controller of the Services of IronLB's class.
func startClassController(_ app.ControllerInitContext, _ *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, _ controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		handler, run := c.services.ClassController()
		if _, err := c.core.Core().V1().Services().Informer().AddEventHandler(handler); err != nil {
			return nil, false, fmt.Errorf("watching Services: %w", err)
		}
		c.run(ctx, ClassController, run)
		return nil, true, nil
	}
}

// startPlacementController starts the writer of VirtualIPs.
func startPlacementController(_ app.ControllerInitContext, _ *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, _ controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		services, nodes := c.core.Core().V1().Services(), c.core.Core().V1().Nodes()
		p := virtualip.New(virtualip.Config{
			Log: c.log, Events: c.events, Allocation: c.services.Ledger, Services: services.Lister(), Nodes: nodes.Lister(),
			Client: c.client, Outage: c.outage, Liveness: c.liveness, IgnoreExclude: c.settings.IgnoreExcludeLB,
		})
		c.outage.setOnRecovery(p.Wake)
		if err := p.Watch(ctx, c.core, c.kinds); err != nil {
			return nil, false, err
		}
		c.run(ctx, PlacementController, p.Run)
		return nil, true, nil
	}
}

// startBGPController starts the controller that aggregates the speakers' BGP sessions and reports unusable BGP objects.
func startBGPController(_ app.ControllerInitContext, _ *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, _ controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		services, nodes := c.core.Core().V1().Services(), c.core.Core().V1().Nodes()
		b := bgpstatus.New(c.log, c.events, c.client, services.Lister(), nodes.Lister())
		b.Liveness = c.liveness
		if err := b.WatchEndpoints(bgpstatus.Evaluation{
			Endpoints: c.endpoints, Allocations: c.services.Ledger, Publish: c.unserved.Set,
			Forwarding: c.settings.ForwardingOf, IgnoreExclude: c.settings.IgnoreExcludeLB,
		}); err != nil {
			return nil, false, err
		}
		c.unserved.Expect()
		if err := b.Watch(ctx, c.core, c.kinds); err != nil {
			return nil, false, err
		}
		c.run(ctx, BGPController, b.Run)
		return nil, true, nil
	}
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
