package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"unique"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools"
)

// EndpointSlices is their informer, shared by all controllers that watch them. Manifests of an earlier version permit
// no EndpointSlices: the first error counts as the first list.
type EndpointSlices struct {
	log    *slog.Logger
	core   informers.SharedInformerFactory
	failed atomic.Bool
	// watched is set by the first Watch.
	watched bool
	// addresses is set to keep every endpoint with its address.
	addresses bool
}

// NewEndpointSlices watches nothing.
func NewEndpointSlices(log *slog.Logger, core informers.SharedInformerFactory) *EndpointSlices {
	return &EndpointSlices{log: log, core: core}
}

// Informer returns the informer. The first call makes it, so that it starts.
func (e *EndpointSlices) Informer() cache.SharedIndexInformer {
	return e.core.Discovery().V1().EndpointSlices().Informer()
}

// The indexes of the slices: by their Service, and by the kept addresses of their endpoints.
const (
	byService = "service"
	byAddress = "address"
)

// Watch adds a handler. known reports whether the slices are known, synced also whether they cannot be watched. It is
// called before the informer starts.
func (e *EndpointSlices) Watch(handler cache.ResourceEventHandler) (known, synced cache.InformerSynced, err error) {
	inf := e.Informer()
	if !e.watched {
		err := errors.Join(inf.SetTransform(e.trim), inf.AddIndexers(cache.Indexers{
			byService: func(o any) ([]string, error) {
				return []string{ServiceOf(o.(*discoveryv1.EndpointSlice)).String()}, nil
			},
			byAddress: func(o any) ([]string, error) { return AddressesIn(o.(*discoveryv1.EndpointSlice)), nil },
		}))
		if err != nil {
			return nil, nil, fmt.Errorf("watching EndpointSlices: %w", err)
		}
		e.watched = true
	}
	reg, err := inf.AddEventHandler(handler)
	if err != nil {
		return nil, nil, fmt.Errorf("watching EndpointSlices: %w", err)
	}
	synced, err = Optional(e.log, "EndpointSlices", inf, reg, &e.failed)
	return reg.HasSynced, synced, err
}

// ServiceOf returns the Service of a slice.
func ServiceOf(slice *discoveryv1.EndpointSlice) pools.ServiceKey {
	return pools.ServiceKey{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
}

// AddressesIn returns the kept addresses of a slice in the form of netip.
func AddressesIn(slice *discoveryv1.EndpointSlice) []string {
	var out []string
	for _, e := range slice.Endpoints {
		for _, addr := range Addresses(e.Addresses[:min(1, len(e.Addresses))]) {
			out = append(out, addr.String())
		}
	}
	return out
}

// At returns the Services with an endpoint at the address, if it is kept.
func (e *EndpointSlices) At(addr netip.Addr) (out []pools.ServiceKey) {
	for _, slice := range e.by(byAddress, addr.String()) {
		out = append(out, ServiceOf(slice))
	}
	return out
}

// Of returns the slices of a Service.
func (e *EndpointSlices) Of(key pools.ServiceKey) []*discoveryv1.EndpointSlice {
	return e.by(byService, key.String())
}

func (e *EndpointSlices) by(index, value string) (out []*discoveryv1.EndpointSlice) {
	all, _ := e.Informer().GetIndexer().ByIndex(index, value) // Watch adds the index
	for _, o := range all {
		out = append(out, o.(*discoveryv1.EndpointSlice))
	}
	return out
}

// Optional tolerates that the API server lacks a kind or denies it to this process: API servers before Kubernetes 1.33
// have no ServiceCIDRs. The first error is logged and sets failed, and counts as the first list.
func Optional(
	log *slog.Logger, what string, inf cache.SharedIndexInformer, reg cache.ResourceEventHandlerRegistration, failed *atomic.Bool,
) (cache.InformerSynced, error) {
	err := inf.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if !failed.Swap(true) {
			log.Warn("watch failed; Services get no warning that depends on these objects", "resource", what, "error", err)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", what, err)
	}
	return func() bool { return reg.HasSynced() || failed.Load() }, nil
}

// KeepAddresses has the slices keep every endpoint with its address. It is called before the informer starts.
func (e *EndpointSlices) KeepAddresses() { e.addresses = true }

// The states of an endpoint in the cache. An unset condition has the default of Kubernetes.
var (
	yes, no     = true, false
	ready       = discoveryv1.EndpointConditions{}
	terminating = discoveryv1.EndpointConditions{Ready: &no, Terminating: &yes} // it still serves
	unusable    = discoveryv1.EndpointConditions{Ready: &no}
)

func stateOf(c discoveryv1.EndpointConditions) discoveryv1.EndpointConditions {
	switch {
	case c.Ready == nil || *c.Ready:
		return ready
	case (c.Serving == nil || *c.Serving) && c.Terminating != nil && *c.Terminating:
		return terminating
	}
	return unusable
}

// ofPods is the manager of slices whose endpoints are Pods.
const ofPods = "endpointslice-controller.k8s.io"

// OfPods reports whether the endpoints of a slice are Pods. The author of another one, or of the Endpoints that it
// mirrors, may write any address.
func OfPods(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == ofPods
}

// maxAddresses is the number of endpoints with an address that are kept of a slice whose endpoints are not Pods.
const maxAddresses = 64

// trim keeps the ports, and the nodes and states of the endpoints that can be used, each pair once: a large cluster has
// more endpoints than anything else in the cache. The strings and conditions are shared. Of Pods it keeps no address
// without KeepAddresses.
func (e *EndpointSlices) trim(o any) (any, error) {
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return o, nil
	}
	out := &discoveryv1.EndpointSlice{AddressType: slice.AddressType}
	out.Name, out.Namespace, out.UID, out.ResourceVersion = slice.Name, slice.Namespace, slice.UID, slice.ResourceVersion
	out.Labels = map[string]string{discoveryv1.LabelServiceName: slice.Labels[discoveryv1.LabelServiceName]}
	if OfPods(slice) {
		out.Labels[discoveryv1.LabelManagedBy] = ofPods
	}
	if _, headless := slice.Labels[v1.IsHeadlessService]; headless {
		return out, nil // ignored by the speakers
	}
	out.Ports = slice.Ports
	type pair struct {
		node  *string
		state discoveryv1.EndpointConditions
	}
	nodes, seen := map[string]*string{}, map[pair]struct{}{}
	var kept []discoveryv1.Endpoint
	addresses := maxAddresses
	if e.addresses {
		addresses = len(slice.Endpoints)
	} else if OfPods(slice) {
		addresses = 0
	}
	for i := range slice.Endpoints {
		in := &slice.Endpoints[i]
		is := pair{state: stateOf(in.Conditions)}
		if in.NodeName != nil {
			if is.node = nodes[*in.NodeName]; is.node == nil {
				name := unique.Make(*in.NodeName).Value()
				is.node, nodes[name] = &name, &name
			}
		}
		_, again := seen[is]
		seen[is] = struct{}{}
		endpoint := discoveryv1.Endpoint{NodeName: is.node, Conditions: is.state}
		switch {
		case i < addresses:
			endpoint.Addresses = in.Addresses[:min(1, len(in.Addresses))]
		case again || is.state == unusable:
			continue
		}
		kept = append(kept, endpoint)
	}
	out.Endpoints = slices.Clone(kept) // without the capacity for more
	return out, nil
}
