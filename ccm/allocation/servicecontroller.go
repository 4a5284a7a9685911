package allocation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/controllers/service"
	servicehelper "k8s.io/cloud-provider/service/helpers"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	klog "k8s.io/klog/v2"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// serviceController is cloud-provider's service controller with the requeuer as its Service informer and the filtered
// client.
type serviceController struct{ *service.Controller }

// LoadBalancer is cloudprovider.LoadBalancer, called by the service controller.
type LoadBalancer struct {
	Registrar *Registrar
}

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

type requeuingInformer struct {
	cache.SharedIndexInformer
	requeuer *requeuer
}

// filteredClient is the filtered client of the service controller: suppressed Events are dropped.
type filteredClient struct{ kubernetes.Interface }

type filteredCore struct{ corev1.CoreV1Interface }

type filteredServices struct{ corev1.ServiceInterface }

type filteredEvents struct{ corev1.EventInterface }

// filteredSink drops the log lines of client-go's record.EventBroadcaster.StartStructuredLogging for suppressed Events.
type filteredSink struct{ logr.LogSink }

// newServiceController creates the controller as its own constructor would, and starts nothing. cloud supports load
// balancers.
func newServiceController(
	cloud cloudprovider.Interface, api kubernetes.Interface, services *requeuer, nodes coreinformers.NodeInformer, cluster string,
) (serviceController, error) {
	c, err := service.New(cloud, filteredClient{api}, services, nodes, cluster, utilfeature.DefaultFeatureGate)
	if err != nil {
		return serviceController{}, fmt.Errorf("starting the service controller: %w", err)
	}
	return serviceController{c}, nil
}

// Run returns when ctx ends.
func (s serviceController) Run(ctx context.Context, workers int, metrics *controllersmetrics.ControllerManagerMetrics) {
	s.Controller.Run(filteredLog(ctx), workers, metrics)
}

// GetLoadBalancer returns what the Service holds, by its name. The load balancer exists as long as the Service
// has any state here, also while it only waits: otherwise the service controller would never report its deletion. It
// also exists for a Service that stopped being a load balancer while no replica ran: IronLB's record is still on the
// object.
func (b *LoadBalancer) GetLoadBalancer(ctx context.Context, _ string, svc *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	settings, ledger := b.Registrar.settings, b.Registrar.ledger
	lease, exists, err := ledger.lease(ctx, svc)
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil {
		exists = exists || servicerecord.Recorded(svc)
	}
	if err != nil || !exists || servicerecord.HasClass(svc) { // served by the class controller now, whatever the class
		return nil, false, err
	}
	return &v1.LoadBalancerStatus{Ingress: settings.OutcomeOf(svc, lease, "", "").Ingress}, true, nil
}

// GetLoadBalancerName is only used in messages.
func (b *LoadBalancer) GetLoadBalancerName(_ context.Context, _ string, svc *v1.Service) string {
	return servicerecord.KeyOf(svc).String()
}

// EnsureLoadBalancer assigns addresses to the Service and writes status, annotation and condition in one patch. It
// always returns ImplementedElsewhere, so that the service controller leaves the status alone: see
// docs/design/ccm-pending.md.
func (b *LoadBalancer) EnsureLoadBalancer(ctx context.Context, _ string, svc *v1.Service, _ []*v1.Node) (*v1.LoadBalancerStatus, error) {
	err := b.Registrar.retryOnConflict(ctx, svc, func(ctx context.Context, now *v1.Service) error {
		if now != svc && !b.Registrar.settings.Classless(now) {
			return nil // the cleanup or the class controller handles that change
		}
		return b.Registrar.serve(ctx, now)
	})
	if err != nil {
		return nil, err
	}
	return nil, cloudprovider.ImplementedElsewhere
}

// UpdateLoadBalancer does nothing: the set of nodes does not change an address, and the placement controller watches
// nodes itself. ImplementedElsewhere saves an Event per Service and node change.
func (b *LoadBalancer) UpdateLoadBalancer(context.Context, string, *v1.Service, []*v1.Node) error {
	return cloudprovider.ImplementedElsewhere
}

// EnsureLoadBalancerDeleted frees what the Service holds or waits for. The service controller calls it for a Service
// that is being deleted or is no longer a load balancer. For a deleted Service it passes the last known object.
func (b *LoadBalancer) EnsureLoadBalancerDeleted(ctx context.Context, _ string, svc *v1.Service) error {
	return b.Registrar.retryOnConflict(ctx, svc, func(ctx context.Context, now *v1.Service) error {
		if now != svc && servicerecord.Balanced(now) {
			return nil // a load balancer again: it keeps its addresses
		}
		return b.ensureDeleted(ctx, now)
	})
}

func (b *LoadBalancer) ensureDeleted(ctx context.Context, svc *v1.Service) error {
	settings, ledger := b.Registrar.settings, b.Registrar.ledger
	switch {
	case servicerecord.HasClass(svc):
		return nil // served by the class controller now, whatever the class
	case svc.DeletionTimestamp != nil && len(svc.Finalizers) <= 1 || settings.Classless(svc): // the object is deleted now
		return ledger.Release(ctx, servicerecord.KeyOf(svc), svc.UID)
	}
	return b.Registrar.clear(ctx, svc)
}

// Informer is called by service.New for its event handler.
func (r *requeuer) Informer() cache.SharedIndexInformer {
	return &requeuingInformer{SharedIndexInformer: r.ServiceInformer.Informer(), requeuer: r}
}

// Wake requeues the Service in the service controller.
func (r *requeuer) Wake(svc *v1.Service) {
	if h := r.handler.Load(); h != nil { // else the controller receives every Service when it starts
		(*h).OnAdd(svc, false)
	}
}

// Start passes on what has been held back, the oldest first. Recorded addresses must have been adopted.
func (r *requeuer) Start(ctx context.Context) {
	r.mu.Lock()
	heldBack := r.heldBack
	r.heldBack, r.started = nil, true
	r.mu.Unlock()
	var services []*v1.Service
	for key := range heldBack {
		if svc, err := r.Lister().Services(key.Namespace).Get(key.Name); err == nil {
			services = append(services, svc)
		}
	}
	slices.SortFunc(services, func(a, b *v1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), servicerecord.KeyOf(a).Compare(servicerecord.KeyOf(b)))
	})
	for _, svc := range services {
		if !r.settled(ctx, svc) {
			r.Wake(svc)
		}
	}
}

// settled reports whether there is nothing to do for the Service. The service controller does not need its addition:
// its finalizer triggers the later cleanup.
func (r *requeuer) settled(ctx context.Context, svc *v1.Service) bool {
	return r.registrar.ledger.Foreign(svc) && !servicerecord.Recorded(svc) || r.registrar.settings.Classless(svc) && r.registrar.settled(ctx, svc)
}

// Revisit wakes the Services without IronLB's record whose address is now in a pool, or that no longer show a foreign
// address.
func (r *requeuer) Revisit() {
	all, err := r.Lister().List(labels.Everything())
	if err != nil {
		return // never: it is a cache
	}
	for _, svc := range all {
		if r.registrar.settings.Classless(svc) && servicerecord.Unrecorded(svc) && !r.registrar.ledger.Foreign(svc) {
			r.Wake(svc)
		}
	}
}

// holdsBack keeps the Service for Start, and reports whether it did.
func (r *requeuer) holdsBack(svc *v1.Service) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return false
	}
	if r.heldBack == nil {
		r.heldBack = map[pools.ServiceKey]struct{}{}
	}
	r.heldBack[servicerecord.KeyOf(svc)] = struct{}{}
	return true
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
func (r *requeuer) cleaning(before, after *v1.Service) bool {
	const name = v1alpha1.AnnotationAllocatedFrom
	return after.Spec.Type != v1.ServiceTypeLoadBalancer && before.Spec.Type == after.Spec.Type && after.DeletionTimestamp == nil &&
		before.Annotations[name] != "" && after.Annotations[name] == "" && r.registrar.ledger.recorded(servicerecord.KeyOf(after)) == ""
}

// withoutEcho returns the Service before the update with the annotation that IronLB wrote, so that the service
// controller does not treat that write as a change. A foreign change of that annotation is passed on.
func (r *requeuer) withoutEcho(before, after *v1.Service) *v1.Service {
	const name = v1alpha1.AnnotationAllocatedFrom
	now := after.Annotations[name]
	if now == "" || before.Annotations[name] == now || now != r.registrar.ledger.recorded(servicerecord.KeyOf(after)) {
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

// suppressed reports whether an Event of the service controller is dropped. Its Normal Events announce or report each
// of its actions, changed or not; IronLB's own Events report the result once. Its Warning about unavailable nodes
// repeats at each sync and does not matter to an address: the condition NoEligibleNode has the relevant nodes.
func suppressed(kind, reason string) bool {
	return kind == v1.EventTypeNormal || reason == "UnAvailableLoadBalancer"
}

// CoreV1 returns the filtered group of Events and Services.
func (c filteredClient) CoreV1() corev1.CoreV1Interface { return filteredCore{c.Interface.CoreV1()} }

// Events drops the suppressed ones.
func (c filteredCore) Events(namespace string) corev1.EventInterface {
	return filteredEvents{c.CoreV1Interface.Events(namespace)}
}

// Services drops writes of the status and additions of the finalizer: the outcome contains both, in one write.
func (c filteredCore) Services(namespace string) corev1.ServiceInterface {
	return filteredServices{c.CoreV1Interface.Services(namespace)}
}

// Patch is called by the service controller for finalizers and for the status.
func (c filteredServices) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*v1.Service, error) {
	var parts struct {
		Metadata struct{ Finalizers []string }
		Status   json.RawMessage
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return nil, fmt.Errorf("reading a patch of Service %s: %w", name, err)
	}
	if parts.Status != nil || slices.Contains(parts.Metadata.Finalizers, servicehelper.LoadBalancerCleanupFinalizer) {
		return &v1.Service{}, nil // the caller ignores it
	}
	return c.ServiceInterface.Patch(ctx, name, pt, data, o, sub...)
}

// CreateWithEventNamespace is called by the recorder.
func (c filteredEvents) CreateWithEventNamespace(e *v1.Event) (*v1.Event, error) {
	if suppressed(e.Type, e.Reason) {
		return e, nil
	}
	return c.CreateWithEventNamespaceWithContext(context.Background(), e)
}

// PatchWithEventNamespace is called by the recorder for a repeated Event.
func (c filteredEvents) PatchWithEventNamespace(e *v1.Event, data []byte) (*v1.Event, error) {
	if suppressed(e.Type, e.Reason) {
		return e, nil
	}
	return c.PatchWithEventNamespaceWithContext(context.Background(), e, data)
}

// filteredLog returns the context for the service controller: its log has no line for a suppressed Event.
func filteredLog(ctx context.Context) context.Context {
	log := klog.FromContext(ctx)
	return klog.NewContext(ctx, log.WithSink(filteredSink{log.WithCallDepth(1).GetSink()}))
}

// Info is called with "type" and "reason" among the values of an Event.
func (s filteredSink) Info(level int, msg string, values ...any) {
	var kind, reason string
	for i := 0; i+1 < len(values); i += 2 {
		switch text, _ := values[i+1].(string); values[i] {
		case "type":
			kind = text
		case "reason":
			reason = text
		}
	}
	if msg != "Event occurred" || !suppressed(kind, reason) {
		s.LogSink.Info(level, msg, values...)
	}
}

// WithValues keeps the filter.
func (s filteredSink) WithValues(values ...any) logr.LogSink {
	return filteredSink{s.LogSink.WithValues(values...)}
}

// WithName keeps the filter.
func (s filteredSink) WithName(name string) logr.LogSink {
	return filteredSink{s.LogSink.WithName(name)}
}
