package allocation

import (
	"context"
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// Config is what the controllers of Services need.
type Config struct {
	Log    *slog.Logger
	Events record.EventRecorder
	Scope  *servicerecord.Scope
	Core   informers.SharedInformerFactory
	API    corev1.ServicesGetter
	// Workers is the number of Services of IronLB's class that are processed concurrently.
	Workers int
}

// Controllers are the two controllers of Services and what they share.
type Controllers struct {
	scope      *servicerecord.Scope
	services   coreinformers.ServiceInformer
	Ledger     *Ledger
	registrar  *Registrar
	requeuer   *requeuer
	classes    *classController
	divergence *divergence
}

// New starts nothing.
func New(config Config) *Controllers {
	services := config.Core.Core().V1().Services()
	c := &Controllers{scope: config.Scope, services: services, Ledger: NewLedger(config.Log, config.Scope)}
	c.registrar = &Registrar{
		Log: config.Log, events: config.Events, settings: config.Scope, ledger: c.Ledger, api: config.API, services: services.Lister(),
	}
	c.requeuer = &requeuer{ServiceInformer: services, registrar: c.registrar}
	c.classes = newClassController(c.registrar, services.Lister(), config.Workers)
	c.divergence = newDivergence(c.registrar, c.wakeService)
	c.Ledger.Requeue = c.wakeService
	c.Ledger.services = func() []*v1.Service {
		all, _ := services.Lister().List(labels.Everything()) // a cache does not fail
		return all
	}
	c.Ledger.cached = func(key pools.ServiceKey) *v1.Service {
		svc, _ := services.Lister().Services(key.Namespace).Get(key.Name) // nil if it is deleted
		return svc
	}
	c.Ledger.PoolsChanged = func() {} // until the pool controller sets its own
	return c
}

// wakeService requeues the Service in the controller that serves it.
func (c *Controllers) wakeService(key pools.ServiceKey) {
	svc, err := c.services.Lister().Services(key.Namespace).Get(key.Name)
	switch {
	case err != nil: // deleted
	case c.scope.Classless(svc):
		c.requeuer.Wake(svc)
	default:
		c.classes.queue.Add(key)
	}
}

// List reads the Services that show an address or have IronLB's record. It reads from the API server, not from
// a cache, so that it includes everything that an earlier leader wrote.
func (c *Controllers) List(ctx context.Context) ([]v1.Service, error) {
	const page = 500
	var all []v1.Service
	opts := metav1.ListOptions{Limit: page}
	for {
		list, err := c.registrar.api.Services("").List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("listing Services: %w", err)
		}
		for i := range list.Items {
			if svc := &list.Items[i]; len(svc.Status.LoadBalancer.Ingress) > 0 || servicerecord.Recorded(svc) {
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

// LoadBalancer is what the service controller calls.
func (c *Controllers) LoadBalancer() cloudprovider.LoadBalancer { return &LoadBalancer{c.registrar} }

// ServiceController returns cloud-provider's service controller for the Services without a class. It is started by its
// Run.
func (c *Controllers) ServiceController(
	cloud cloudprovider.Interface, api kubernetes.Interface, nodes coreinformers.NodeInformer, cluster string,
) (serviceController, error) {
	return newServiceController(cloud, api, c.requeuer, nodes, cluster)
}

// ClassController returns the handler for Services and the task of the controller of IronLB's class.
func (c *Controllers) ClassController() (cache.ResourceEventHandler, func(context.Context) error) {
	return c.classes.handler(), c.classes.Run
}

// OnPoolsChanged sets the function that is called when what the status of pools shows has changed. It must not block.
func (c *Controllers) OnPoolsChanged(f func()) { c.Ledger.PoolsChanged = f }

// Start begins to serve Services, once all they hold is adopted.
func (c *Controllers) Start(ctx context.Context) { c.requeuer.Start(ctx) }

// Revisit wakes the Services that a change of pools may concern.
func (c *Controllers) Revisit() { c.requeuer.Revisit() }

// Unconfirmed returns the adopted Services that the cache lacks: see registrar.unconfirmed.
func (c *Controllers) Unconfirmed(listed []v1.Service) []*v1.Service {
	return c.registrar.unconfirmed(listed)
}

// ReleaseUnconfirmed releases those of them that are deleted, and returns the others.
func (c *Controllers) ReleaseUnconfirmed(ctx context.Context, unconfirmed []*v1.Service) []*v1.Service {
	return c.registrar.releaseUnconfirmed(ctx, unconfirmed)
}
