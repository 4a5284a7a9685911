package ccm

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/controllers/service"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// startServiceController starts cloud-provider's service controller as its own constructor would, except that its Service
// informer is ours to wake a Service through.
func startServiceController(init app.ControllerInitContext, config *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, manager controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		s, err := service.New(
			c,
			config.ClientBuilder.ClientOrDie(init.ClientName),
			c.waker,
			config.SharedInformers.Core().V1().Nodes(),
			config.ComponentConfig.KubeCloudShared.ClusterName,
			utilfeature.DefaultFeatureGate,
		)
		if err != nil {
			return nil, false, fmt.Errorf("starting the service controller: %w", err)
		}
		go s.Run(ctx, int(config.ComponentConfig.ServiceController.ConcurrentServiceSyncs), manager.ControllerManagerMetrics)
		return nil, true, nil
	}
}

// waker is the Service informer that the service controller is given. It passes on what the informer says, with these
// differences: an addition is repeated for a Service that waits when its turn has come (Wake), an update is repeated as an
// addition when something changed that matters to us and not to the controller, and the echo of our own annotation is
// left out.
type waker struct {
	coreinformers.ServiceInformer
	ledger  *ledger
	handler atomic.Pointer[cache.ResourceEventHandler]
}

// Informer is called by service.New for its event handler.
func (w *waker) Informer() cache.SharedIndexInformer {
	return &wakingInformer{SharedIndexInformer: w.ServiceInformer.Informer(), waker: w}
}

// Wake has the service controller look at the Service again.
func (w *waker) Wake(key pools.ServiceKey) {
	h := w.handler.Load()
	if h == nil {
		return // not started: it will see every Service when it is
	}
	if svc, err := w.Lister().Services(key.Namespace).Get(key.Name); err == nil {
		(*h).OnAdd(svc, false)
	}
}

type wakingInformer struct {
	cache.SharedIndexInformer
	waker *waker
}

// AddEventHandlerWithResyncPeriod keeps the handler and puts the filter before it.
func (i *wakingInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	i.waker.handler.Store(&h)
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    h.OnAdd,
		DeleteFunc: h.OnDelete,
		UpdateFunc: func(o, n any) {
			before, ok1 := o.(*v1.Service)
			after, ok2 := n.(*v1.Service)
			if !ok1 || !ok2 {
				h.OnUpdate(o, n)
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
	return !maps.Equal(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Spec.IPFamilyPolicy, after.Spec.IPFamilyPolicy) ||
		!maps.Equal(before.Spec.Selector, after.Spec.Selector)
}

// cleaning says whether the update is our own removal of the annotation from a Service that is a load balancer no more: the
// controller is just cleaning it up, and would do it twice.
func (w *waker) cleaning(before, after *v1.Service) bool {
	const name = v1alpha1.AnnotationAllocatedFrom
	return after.Spec.Type != v1.ServiceTypeLoadBalancer && before.Spec.Type == after.Spec.Type && after.DeletionTimestamp == nil &&
		before.Annotations[name] != "" && after.Annotations[name] == "" && w.ledger.recorded(keyOf(after)) == ""
}

// withoutEcho returns the Service before the update as if it had had the annotation that we wrote, so that the service
// controller does not take our own write for a change. Somebody else's change of that annotation is passed on.
func (w *waker) withoutEcho(before, after *v1.Service) *v1.Service {
	const name = v1alpha1.AnnotationAllocatedFrom
	now := after.Annotations[name]
	if now == "" || before.Annotations[name] == now || now != w.ledger.recorded(keyOf(after)) {
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
