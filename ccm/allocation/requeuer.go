package allocation

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// requeuer is the requeuer: the Service informer of the service controller. It passes on the informer's events, with
// these differences. Services of another controller are left out: the service controller would add its finalizer, or
// remove the other's. An addition is repeated for a waiting Service when it is to be served (Wake). An update is
// repeated as an addition if a field changed that matters to the ledger and not to the controller. The echo of IronLB's
// own annotation is left out. After a start, Services for which nothing is left to do are left out, too.
type requeuer struct {
	coreinformers.ServiceInformer
	registrar *Registrar
	handler   atomic.Pointer[cache.ResourceEventHandler]

	mu sync.Mutex
	// heldBack are the Services received before recorded addresses were adopted.
	heldBack map[pools.ServiceKey]struct{}
	started  bool
}

// Informer is called by service.New for its event handler.
func (w *requeuer) Informer() cache.SharedIndexInformer {
	return &requeuingInformer{SharedIndexInformer: w.ServiceInformer.Informer(), requeuer: w}
}

// Wake requeues the Service in the service controller.
func (w *requeuer) Wake(svc *v1.Service) {
	if h := w.handler.Load(); h != nil { // else the controller receives every Service when it starts
		(*h).OnAdd(svc, false)
	}
}

// Start passes on what has been held back, the oldest first. Recorded addresses must have been adopted.
func (w *requeuer) Start(ctx context.Context) {
	w.mu.Lock()
	heldBack := w.heldBack
	w.heldBack, w.started = nil, true
	w.mu.Unlock()
	var services []*v1.Service
	for key := range heldBack {
		if svc, err := w.Lister().Services(key.Namespace).Get(key.Name); err == nil {
			services = append(services, svc)
		}
	}
	slices.SortFunc(services, func(a, b *v1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), servicerecord.KeyOf(a).Compare(servicerecord.KeyOf(b)))
	})
	for _, svc := range services {
		if !w.settled(ctx, svc) {
			w.Wake(svc)
		}
	}
}

// settled reports whether there is nothing to do for the Service. The service controller does not need its addition:
// its finalizer triggers the later cleanup.
func (w *requeuer) settled(ctx context.Context, svc *v1.Service) bool {
	return w.registrar.ledger.Foreign(svc) && !servicerecord.Recorded(svc) || w.registrar.settings.Classless(svc) && w.registrar.settled(ctx, svc)
}

// Revisit wakes the Services without IronLB's record whose address is now in a pool, or that no longer show a foreign
// address.
func (w *requeuer) Revisit() {
	all, err := w.Lister().List(labels.Everything())
	if err != nil {
		return // never: it is a cache
	}
	for _, svc := range all {
		if w.registrar.settings.Classless(svc) && servicerecord.Unrecorded(svc) && !w.registrar.ledger.Foreign(svc) {
			w.Wake(svc)
		}
	}
}

// holdsBack keeps the Service for Start, and reports whether it did.
func (w *requeuer) holdsBack(svc *v1.Service) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return false
	}
	if w.heldBack == nil {
		w.heldBack = map[pools.ServiceKey]struct{}{}
	}
	w.heldBack[servicerecord.KeyOf(svc)] = struct{}{}
	return true
}

type requeuingInformer struct {
	cache.SharedIndexInformer
	requeuer *requeuer
}

// AddEventHandlerWithResyncPeriod keeps the handler and puts the filter in front of it.
func (i *requeuingInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	i.requeuer.handler.Store(&h)
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, initial bool) {
			if svc, ok := o.(*v1.Service); !ok || !i.requeuer.holdsBack(svc) && !i.requeuer.registrar.ledger.Foreign(svc) {
				h.OnAdd(o, initial)
			}
		},
		DeleteFunc: h.OnDelete,
		UpdateFunc: func(o, n any) {
			before, ok1 := o.(*v1.Service)
			after, ok2 := n.(*v1.Service)
			if !ok1 || !ok2 {
				h.OnUpdate(o, n)
				return
			}
			if i.requeuer.holdsBack(after) || i.requeuer.registrar.ledger.Foreign(after) {
				return
			}
			if needsAnother(before, after) {
				h.OnAdd(after, false)
			}
			if !i.requeuer.cleaning(before, after) {
				h.OnUpdate(i.requeuer.withoutEcho(before, after), after)
			}
		},
	}, resync)
}

// needsAnother reports whether a field changed that the allocator uses and the service controller does not.
func needsAnother(before, after *v1.Service) bool {
	return servicerecord.Unrecorded(before) && len(after.Status.LoadBalancer.Ingress) == 0 || // another controller's addresses were removed
		!maps.Equal(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Spec.IPFamilyPolicy, after.Spec.IPFamilyPolicy) ||
		!maps.Equal(before.Spec.Selector, after.Spec.Selector)
}

// cleaning reports whether the update is IronLB's own removal of the annotation from a Service that is no longer a load
// balancer: the controller is already cleaning it up, and would do so twice.
func (w *requeuer) cleaning(before, after *v1.Service) bool {
	const name = v1alpha1.AnnotationAllocatedFrom
	return after.Spec.Type != v1.ServiceTypeLoadBalancer && before.Spec.Type == after.Spec.Type && after.DeletionTimestamp == nil &&
		before.Annotations[name] != "" && after.Annotations[name] == "" && w.registrar.ledger.recorded(servicerecord.KeyOf(after)) == ""
}

// withoutEcho returns the Service before the update with the annotation that IronLB wrote, so that the service
// controller does not treat that write as a change. A foreign change of that annotation is passed on.
func (w *requeuer) withoutEcho(before, after *v1.Service) *v1.Service {
	const name = v1alpha1.AnnotationAllocatedFrom
	now := after.Annotations[name]
	if now == "" || before.Annotations[name] == now || now != w.registrar.ledger.recorded(servicerecord.KeyOf(after)) {
		return before
	}
	same := *before
	same.Annotations = maps.Clone(before.Annotations)
	if same.Annotations == nil {
		same.Annotations = map[string]string{}
	}
	same.Annotations[name] = now
	return &same
}
