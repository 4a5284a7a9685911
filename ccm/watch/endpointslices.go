package watch

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"unique"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// EndpointSlices is their informer, shared by all controllers that watch them. Manifests of an earlier version permit
// no EndpointSlices: the first error counts as the first list.
type EndpointSlices struct {
	log    *slog.Logger
	core   informers.SharedInformerFactory
	failed atomic.Bool
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

// Watch adds an index and a handler. known reports whether the slices are known, synced also whether they cannot be
// watched. It is called before the informer starts.
func (e *EndpointSlices) Watch(index cache.Indexers, handler cache.ResourceEventHandler) (known, synced cache.InformerSynced, err error) {
	inf := e.Informer()
	if err := inf.SetTransform(e.trim); err != nil {
		return nil, nil, fmt.Errorf("watching EndpointSlices: %w", err)
	}
	if err := inf.AddIndexers(index); err != nil {
		return nil, nil, fmt.Errorf("watching EndpointSlices: %w", err)
	}
	reg, err := inf.AddEventHandler(handler)
	if err != nil {
		return nil, nil, fmt.Errorf("watching EndpointSlices: %w", err)
	}
	synced, err = Optional(e.log, "EndpointSlices", inf, reg, &e.failed)
	return reg.HasSynced, synced, err
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

// trim keeps the ports, and the nodes and states of the endpoints that can be used, each pair once: a large cluster has
// more endpoints than anything else in the cache. The strings and conditions are shared.
func (e *EndpointSlices) trim(o any) (any, error) {
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return o, nil
	}
	out := &discoveryv1.EndpointSlice{AddressType: slice.AddressType}
	out.Name, out.Namespace, out.UID, out.ResourceVersion = slice.Name, slice.Namespace, slice.UID, slice.ResourceVersion
	out.Labels = map[string]string{discoveryv1.LabelServiceName: slice.Labels[discoveryv1.LabelServiceName]}
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
		case e.addresses:
			endpoint.Addresses = in.Addresses[:min(1, len(in.Addresses))]
		case again || is.state == unusable:
			continue
		}
		kept = append(kept, endpoint)
	}
	out.Endpoints = slices.Clone(kept) // without the capacity for more
	return out, nil
}
