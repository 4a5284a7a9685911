package ccm

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

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// waker is the Service informer that the service controller is given. It passes on what the informer says, with these
// differences: what another controller serves is left out, for the service controller would add its finalizer, or remove
// the other's; an addition is repeated for a Service that waits when its turn has come (Wake), an update is repeated as an
// addition when something changed that matters to us and not to the controller, the echo of our own annotation is left out,
// and so are, after a start, the Services for which nothing is left to do.
type waker struct {
	coreinformers.ServiceInformer
	registrar *registrar
	handler   atomic.Pointer[cache.ResourceEventHandler]

	mu sync.Mutex
	// early are the Services seen before recorded addresses were adopted.
	early   map[pools.ServiceKey]struct{}
	started bool
}

// Informer is called by service.New for its event handler.
func (w *waker) Informer() cache.SharedIndexInformer {
	return &wakingInformer{SharedIndexInformer: w.ServiceInformer.Informer(), waker: w}
}

// Wake has the service controller look at the Service again.
func (w *waker) Wake(svc *v1.Service) {
	if h := w.handler.Load(); h != nil { // else it will see every Service when it is started
		(*h).OnAdd(svc, false)
	}
}

// Start passes on what has been held back, the oldest first. Recorded addresses must have been adopted.
func (w *waker) Start(ctx context.Context) {
	w.mu.Lock()
	early := w.early
	w.early, w.started = nil, true
	w.mu.Unlock()
	var services []*v1.Service
	for key := range early {
		if svc, err := w.Lister().Services(key.Namespace).Get(key.Name); err == nil {
			services = append(services, svc)
		}
	}
	slices.SortFunc(services, func(a, b *v1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), keyOf(a).Compare(keyOf(b)))
	})
	for _, svc := range services {
		if !w.settled(ctx, svc) {
			w.Wake(svc)
		}
	}
}

// settled says whether there is nothing to do for the Service. The service controller need not know one: its finalizer
// makes it clean up later, too.
func (w *waker) settled(ctx context.Context, svc *v1.Service) bool {
	return w.registrar.ledger.theirs(svc) || w.registrar.settings.classless(svc) && w.registrar.settled(ctx, svc)
}

// Revisit wakes the Services that were another controller's, and of which a pool has an address now.
func (w *waker) Revisit() {
	all, err := w.Lister().List(labels.Everything())
	if err != nil {
		return // never: it is a cache
	}
	for _, svc := range all {
		if w.registrar.settings.classless(svc) && unrecorded(svc) && !w.registrar.ledger.theirs(svc) {
			w.Wake(svc)
		}
	}
}

// holdsBack keeps the Service for Start.
func (w *waker) holdsBack(svc *v1.Service) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return false
	}
	if w.early == nil {
		w.early = map[pools.ServiceKey]struct{}{}
	}
	w.early[keyOf(svc)] = struct{}{}
	return true
}

type wakingInformer struct {
	cache.SharedIndexInformer
	waker *waker
}

// AddEventHandlerWithResyncPeriod keeps the handler and puts the filter before it.
func (i *wakingInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	i.waker.handler.Store(&h)
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, initial bool) {
			if svc, ok := o.(*v1.Service); !ok || !i.waker.holdsBack(svc) && !i.waker.registrar.ledger.theirs(svc) {
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
			if i.waker.holdsBack(after) || i.waker.registrar.ledger.theirs(after) {
				return
			}
			if needsAnother(before, after) {
				h.OnAdd(after, false)
			}
			if !i.waker.cleaning(before, after) {
				h.OnUpdate(i.waker.withoutEcho(before, after), after)
			}
		},
	}, resync)
}

// needsAnother says whether something changed that the allocator looks at and the service controller does not.
func needsAnother(before, after *v1.Service) bool {
	return unrecorded(before) && len(after.Status.LoadBalancer.Ingress) == 0 || // what another controller gave is gone
		!maps.Equal(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Spec.IPFamilyPolicy, after.Spec.IPFamilyPolicy) ||
		!maps.Equal(before.Spec.Selector, after.Spec.Selector)
}

// cleaning says whether the update is our own removal of the annotation from a Service that is a load balancer no more: the
// controller is just cleaning it up, and would do it twice.
func (w *waker) cleaning(before, after *v1.Service) bool {
	const name = v1alpha1.AnnotationAllocatedFrom
	return after.Spec.Type != v1.ServiceTypeLoadBalancer && before.Spec.Type == after.Spec.Type && after.DeletionTimestamp == nil &&
		before.Annotations[name] != "" && after.Annotations[name] == "" && w.registrar.ledger.recorded(keyOf(after)) == ""
}

// withoutEcho returns the Service before the update as if it had had the annotation that we wrote, so that the service
// controller does not take our own write for a change. Somebody else's change of that annotation is passed on.
func (w *waker) withoutEcho(before, after *v1.Service) *v1.Service {
	const name = v1alpha1.AnnotationAllocatedFrom
	now := after.Annotations[name]
	if now == "" || before.Annotations[name] == now || now != w.registrar.ledger.recorded(keyOf(after)) {
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
