// Package kube is the speaker's side of the Kubernetes API: what is known of the cluster comes in as a plan.View, the
// status of VirtualIPs goes out.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/plan"
)

// ref names a part of the View.
type ref struct {
	kind string
	key  pools.ServiceKey // or only a name
	// slice is the name of an EndpointSlice; key is its Service.
	slice string
}

// Source keeps a View up to date. While the API server is away it goes on with what was known last.
type Source struct {
	kick      func()
	informers map[string]cache.SharedIndexInformer
	synced    []cache.InformerSynced

	mu      sync.Mutex
	pending map[ref]any // nil for what is gone

	view *plan.View // of the caller of Observe
}

// watch is how the objects of one kind are read.
type watch struct {
	kind    string
	object  runtime.Object
	from    cache.ListerWatcher
	convert func(obj any) (ref, any)
}

// newSource returns a Source of these watches.
func newSource(watches []watch, kick func(), log *slog.Logger) (*Source, error) {
	s := &Source{
		kick:      kick,
		informers: map[string]cache.SharedIndexInformer{},
		pending:   map[ref]any{},
		view:      plan.NewView(),
	}
	for _, w := range watches {
		inf := cache.NewSharedIndexInformer(w.from, w.object, 0, cache.Indexers{})
		if err := inf.SetTransform(trim); err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.kind, err)
		}
		if err := inf.SetWatchErrorHandlerWithContext(logOnce(w.kind, log)); err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.kind, err)
		}
		reg, err := inf.AddEventHandler(s.handler(w.convert))
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.kind, err)
		}
		s.informers[w.kind] = inf
		s.synced = append(s.synced, reg.HasSynced)
	}
	return s, nil
}

// Run watches until the context ends.
func (s *Source) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, inf := range s.informers {
		wg.Go(func() { inf.RunWithContext(ctx) })
	}
	if cache.WaitForCacheSync(ctx.Done(), s.synced...) {
		s.kick()
	}
	wg.Wait()
	return nil
}

// Observe implements speaker.Source. Only what changed is put into the View.
func (s *Source) Observe() (*plan.View, plan.Touched, bool) {
	for _, synced := range s.synced {
		if !synced() {
			return nil, plan.Touched{}, false
		}
	}
	s.mu.Lock()
	pending := s.pending
	s.pending = map[ref]any{}
	s.mu.Unlock()
	touched := plan.Touched{
		Services: map[pools.ServiceKey]struct{}{},
		Nodes:    map[string]struct{}{},
		VIPs:     map[string]struct{}{},
	}
	for r, value := range pending {
		fold(s.view, &touched, r, value)
	}
	return s.view, touched, true
}

// fold puts one changed object into the View.
func fold(v *plan.View, touched *plan.Touched, r ref, value any) {
	switch r.kind {
	case kindService:
		put(v.Services, r.key, value)
		touched.Services[r.key] = struct{}{}
	case kindSlice:
		if v.Slices[r.key] == nil {
			v.Slices[r.key] = map[string]plan.Slice{}
		}
		put(v.Slices[r.key], r.slice, value)
		if len(v.Slices[r.key]) == 0 {
			delete(v.Slices, r.key)
		}
		if _, ours := v.Services[r.key]; ours {
			touched.Services[r.key] = struct{}{}
		}
	case kindNode:
		put(v.Nodes, r.key.Name, value)
		touched.Nodes[r.key.Name] = struct{}{}
	case kindVIP:
		put(v.VIPs, r.key.Name, value)
		touched.VIPs[r.key.Name] = struct{}{}
	case kindAdvertisement:
		put(v.Advertisements, r.key.Name, value)
		touched.Advertisements = true
	}
}

func put[K comparable, V any](m map[K]V, key K, value any) {
	if value == nil {
		delete(m, key)
		return
	}
	m[key] = value.(V)
}

// handler keeps the changes of one kind for Observe and kicks. An update that means nothing to the plan, as most of a
// Node's, kicks nobody.
func (s *Source) handler(convert func(any) (ref, any)) cache.ResourceEventHandler {
	gone := func(obj any) {
		if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tomb.Obj
		}
		r, _ := convert(obj)
		s.put(r, nil)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.put(convert(obj)) },
		UpdateFunc: func(before, after any) {
			r0, v0 := convert(before)
			r1, v1 := convert(after)
			if r0 != r1 {
				s.put(r0, nil)
			} else if reflect.DeepEqual(v0, v1) {
				return
			}
			s.put(r1, v1)
		},
		DeleteFunc: gone,
	}
}

func (s *Source) put(r ref, value any) {
	s.mu.Lock()
	s.pending[r] = value
	s.mu.Unlock()
	s.kick()
}

// The kinds, by the names of their resources.
const (
	kindService       = "services"
	kindSlice         = "endpointslices"
	kindNode          = "nodes"
	kindVIP           = "virtualips"
	kindAdvertisement = "l2advertisements"
)

func convertService(obj any) (ref, any) {
	svc := obj.(*corev1.Service)
	r := ref{kind: kindService, key: pools.ServiceKey{Namespace: svc.Namespace, Name: svc.Name}}
	if out, ours := serviceOf(svc); ours {
		return r, out
	}
	return r, nil
}

func convertSlice(obj any) (ref, any) {
	slice := obj.(*discoveryv1.EndpointSlice)
	service := pools.ServiceKey{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
	return ref{kind: kindSlice, key: service, slice: slice.Name}, sliceOf(slice)
}

func convertNode(obj any) (ref, any) {
	node := obj.(*corev1.Node)
	return ref{kind: kindNode, key: pools.ServiceKey{Name: node.Name}}, nodeOf(node)
}

func convertVIP(obj any) (ref, any) {
	vip := obj.(*v1alpha1.VirtualIP)
	return ref{kind: kindVIP, key: pools.ServiceKey{Name: vip.Name}}, vipOf(vip)
}

func convertAdvertisement(obj any) (ref, any) {
	ad := obj.(*v1alpha1.L2Advertisement)
	return ref{kind: kindAdvertisement, key: pools.ServiceKey{Name: ad.Name}}, advertisementOf(ad)
}
