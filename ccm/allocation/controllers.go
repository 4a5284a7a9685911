package allocation

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

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

// divergence requeues Services whose status another writer changed, with increasing delays: two controllers that
// contend for a Service must not escalate.
type divergence struct {
	registrar *Registrar
	wake      func(pools.ServiceKey)
	limiter   workqueue.TypedRateLimiter[pools.ServiceKey]

	mu      sync.Mutex
	repairs map[pools.ServiceKey]scheduledRepair
}

// scheduledRepair is a Service whose status diverged.
type scheduledRepair struct {
	last time.Time // time of the last scheduled repair
	due  bool      // the repair is still pending
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

// Watch feeds the ledger with namespaces and with what Services show, and repairs Services. It returns the sync
// functions.
func (c *Controllers) Watch(ctx context.Context, core informers.SharedInformerFactory) ([]cache.InformerSynced, error) {
	namespaces, err := core.Core().V1().Namespaces().Informer().AddEventHandler(c.Ledger.namespaceHandler())
	if err != nil {
		return nil, fmt.Errorf("watching Namespaces: %w", err)
	}
	services, err := c.services.Informer().AddEventHandler(c.divergence.handler(ctx))
	if err != nil {
		return nil, fmt.Errorf("watching Services: %w", err)
	}
	return []cache.InformerSynced{namespaces.HasSynced, services.HasSynced}, nil
}

// namespaceHandler passes on the labels of namespaces, for the pools' namespace selectors.
func (l *Ledger) namespaceHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.setNamespace(o.(*v1.Namespace)) },
		UpdateFunc: func(_, o any) { l.setNamespace(o.(*v1.Namespace)) },
		DeleteFunc: func(o any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				l.change(func() bool { return l.alloc.DeleteNamespace(key) })
			}
		},
	}
}

func (l *Ledger) setNamespace(ns *v1.Namespace) {
	l.change(func() bool { return l.alloc.SetNamespace(ns.Name, ns.Labels) })
}

// Delays before a divergent status is repaired. After repairReset without a change the delay starts over.
const (
	repairFirst = 100 * time.Millisecond
	repairLast  = 5 * time.Minute
	repairReset = 2 * repairLast
)

func newDivergence(r *Registrar, wake func(pools.ServiceKey)) *divergence {
	return &divergence{
		registrar: r, wake: wake, repairs: map[pools.ServiceKey]scheduledRepair{},
		limiter: workqueue.NewTypedItemExponentialFailureRateLimiter[pools.ServiceKey](repairFirst, repairLast),
	}
}

// handler watches all Services. It withholds what they show without holding it. It frees what a Service held that was
// deleted without its finalizers. At each resync of
// the informer (once in 12 to 24 hours) it retries Services that lack something: nothing should depend on that.
func (d *divergence) handler(ctx context.Context) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { d.registrar.ledger.shown(o.(*v1.Service)) },
		UpdateFunc: func(b, a any) {
			before, svc := b.(*v1.Service), a.(*v1.Service)
			d.registrar.ledger.shown(svc)
			if d.registrar.diverged(svc) {
				d.repair(servicerecord.KeyOf(svc))
			} else if before.ResourceVersion == svc.ResourceVersion && d.registrar.unmet(svc) {
				d.wake(servicerecord.KeyOf(svc)) // a resync: no known change
			}
		},
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			svc, ok := o.(*v1.Service)
			if !ok {
				return
			}
			d.remove(servicerecord.KeyOf(svc))
			d.registrar.ledger.shown(svc)
			d.registrar.ledger.serviceDeleted(ctx, servicerecord.KeyOf(svc), svc.UID)
		},
	}
}

// repair wakes the Service once after its delay, however many changes are observed until then.
func (d *divergence) repair(key pools.ServiceKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.repairs[key]
	if s.due {
		return
	}
	if time.Since(s.last) > repairReset {
		d.limiter.Forget(key)
	}
	wait := d.limiter.When(key)
	d.repairs[key] = scheduledRepair{last: time.Now().Add(wait), due: true}
	time.AfterFunc(wait, func() {
		d.mu.Lock()
		if s, ok := d.repairs[key]; ok {
			s.due = false
			d.repairs[key] = s
		}
		d.mu.Unlock()
		d.wake(key)
	})
}

func (d *divergence) remove(key pools.ServiceKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limiter.Forget(key)
	delete(d.repairs, key)
}

var assignments = metrics.NewHistogram(&metrics.HistogramOpts{
	Name:           "ironlb_ccm_assign_duration_seconds",
	Help:           "Time from the start of processing a Service until its assigned addresses are written.",
	Buckets:        []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	StabilityLevel: metrics.ALPHA,
})

// Metrics are all metrics of this package. They are registered when the first of them is measured.
var Metrics = []metrics.Registerable{assignments}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics...) })

// measureAssignment records how long the assignment of addresses to a Service took.
func measureAssignment(took time.Duration) {
	register()
	assignments.Observe(took.Seconds())
}
