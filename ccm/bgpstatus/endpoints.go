package bgpstatus

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Allocations is what unserved addresses depend on of the allocation of addresses.
type Allocations interface {
	// Standing returns the addresses that the Service shows rightfully.
	Standing(svc *v1.Service) []pools.Address
	// Adopted reports whether recorded addresses have been adopted: before that no Service holds anything.
	Adopted() bool
}

// Publish takes the problem of each listed address that no node serves.
type Publish func(map[netip.Addr]condition.Problem)

// Evaluation is what the evaluation of unserved addresses needs.
type Evaluation struct {
	Endpoints   *watch.EndpointSlices
	Allocations Allocations
	Publish     Publish
	// Forwarding returns how the addresses of a Service are forwarded.
	Forwarding func(*v1.Service) v1alpha1.Forwarding
	// IgnoreExclude includes nodes with the exclude label.
	IgnoreExclude bool
}

// WatchEndpoints has the controller evaluate which addresses no node serves.
func (b *Controller) WatchEndpoints(e Evaluation) error {
	endpoints, of := e.Endpoints, e.Allocations
	handler := cache.FilteringResourceEventHandler{
		FilterFunc: func(o any) bool { return ofLoadBalancer(b.services, o) }, Handler: b.Handler(),
	}
	known, synced, err := endpoints.Watch(handler)
	if err != nil {
		return err
	}
	b.Synced = append(b.Synced, synced, of.Adopted)
	b.unserved = unserved{
		log: b.log, ready: of.Adopted, held: of.Standing, known: known, publish: e.Publish, ignoreExclude: e.IgnoreExclude,
		forwarding: e.Forwarding,
		endpoints: func(svc *v1.Service) []*discoveryv1.EndpointSlice {
			return endpoints.Of(pools.ServiceKey{Namespace: svc.Namespace, Name: svc.Name})
		},
	}
	return nil
}

// ofLoadBalancer reports whether an EndpointSlice is one of a Service of type LoadBalancer.
func ofLoadBalancer(services corelisters.ServiceLister, o any) bool {
	if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = tomb.Obj
	}
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return false
	}
	svc, err := services.Services(slice.Namespace).Get(slice.Labels[discoveryv1.LabelServiceName])
	return err == nil && svc.Spec.Type == v1.ServiceTypeLoadBalancer
}
