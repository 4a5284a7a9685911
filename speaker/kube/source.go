// Package kube is the speaker's access to the Kubernetes API: the cluster state comes in as a view.View, the status of
// VirtualIPs is sent.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
)

// ref names a part of the View.
type ref struct {
	kind string
	key  pools.ServiceKey // or only a name
	// slice is the name of an EndpointSlice; key is its Service.
	slice string
	check view.Check
}

// Source keeps a View up to date. While the API server is unavailable the last known state stays in use.
type Source struct {
	trigger   func()
	informers map[string]cache.SharedIndexInformer
	synced    []cache.InformerSynced
	// optional are the kinds that the API server may not have, or may deny to this process. The first View still waits
	// for its response: BGP routes that a restarted speaker does not have yet would be withdrawn.
	optional []optionalKind
	secrets  *lazySecrets
	each     map[string]cache.InformerSynced // by kind, also of the optional ones
	events   map[string]*atomic.Uint64       // of the informers, by kind: see derived

	triggers  *triggers
	endpoints derived[endpoints]
	ours      derived[Ours]

	mu      sync.Mutex
	pending map[ref]any                        // nil for deleted objects
	since   []time.Time                        // triggers of pending changes
	own     map[string]map[netip.Addr]struct{} // kindHost and kindGateway
	links   map[string]view.Link

	// Used by the caller of Observe.
	view  *view.View
	bgp   bgpObjects
	begun bool // a View has been returned
}

// optionalKind is a kind that may be refused.
type optionalKind struct {
	synced  cache.InformerSynced
	refused *refusal
}

func (o optionalKind) settled() bool { return o.synced() || o.refused.why() != "" }

// watch defines how the objects of one kind are read.
type watch struct {
	kind   string
	object runtime.Object
	from   cache.ListerWatcher
	// convert returns the object's part of the View; nil if it has none.
	convert func(obj any) (ref, any)
	trim    cache.TransformFunc
	// namespace of the Secrets.
	namespace string
	// optional is set if the View is complete without the kind: the API server may not have it, or may forbid it.
	optional bool
}

// newSource returns a Source with these watches.
func newSource(watches []watch, trigger func(), log *slog.Logger) (*Source, error) {
	s := &Source{
		trigger:   trigger,
		informers: map[string]cache.SharedIndexInformer{},
		each:      map[string]cache.InformerSynced{},
		events:    map[string]*atomic.Uint64{},
		triggers:  newTriggers(),
		pending:   map[ref]any{},
		own:       map[string]map[netip.Addr]struct{}{},
		view:      view.New(),
		bgp:       newBGPObjects(),
	}
	failures := &watchErrors{log: log, last: map[string]time.Time{}}
	for _, w := range watches {
		inf := cache.NewSharedIndexInformer(w.from, w.object, 0, cache.Indexers{})
		if w.kind == kindSlice {
			w.trim = s.triggers.record(w.trim)
		}
		if err := inf.SetTransform(w.trim); err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.kind, err)
		}
		refused := &refusal{changed: trigger, builtIn: w.kind == kindServiceCIDR}
		if err := inf.SetWatchErrorHandlerWithContext(refused.watched(failures.of(w.kind))); err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.kind, err)
		}
		s.informers[w.kind] = inf
		if w.convert == nil {
			continue
		}
		s.events[w.kind] = &atomic.Uint64{}
		reg, err := inf.AddEventHandler(s.handler(s.events[w.kind], w.convert))
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.kind, err)
		}
		if w.kind != kindSecret {
			s.each[w.kind] = reg.HasSynced
		}
		switch {
		case w.kind == kindSecret:
			delete(s.informers, w.kind)
			s.secrets = &lazySecrets{optionalKind: optionalKind{reg.HasSynced, refused}, namespace: w.namespace, informer: inf, needed: make(chan struct{})}
		case w.optional:
			s.optional = append(s.optional, optionalKind{reg.HasSynced, refused})
		default:
			s.synced = append(s.synced, reg.HasSynced)
		}
	}
	return s, nil
}

// listed reports whether the API server has returned every required list. For the first View it also waits for the
// kinds that may be refused.
func (s *Source) listed(secrets secretsState) bool {
	for _, synced := range s.synced {
		if !synced() {
			return false
		}
	}
	return s.begun || s.settled(secrets)
}

// settled reports whether the first View can be built, given this state of the Secrets.
func (s *Source) settled(secrets secretsState) bool {
	for _, o := range s.optional {
		if !o.settled() {
			return false
		}
	}
	return !secrets.unread || !s.secrets.isNeeded() // the peers are in, and so that is known
}

// Run watches until the context ends.
func (s *Source) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, inf := range s.informers {
		wg.Go(func() { inf.RunWithContext(ctx) })
	}
	wg.Go(func() { s.secrets.run(ctx, s.trigger) })
	if cache.WaitForCacheSync(ctx.Done(), append(slices.Clone(s.synced), func() bool { return s.settled(s.secrets.state()) })...) {
		s.trigger()
	}
	wg.Wait()
	return nil
}

// Observe implements speaker.Source. It puts only changes into the View.
func (s *Source) Observe() (*view.View, view.Touched, bool) {
	secrets := s.secrets.state() // before the Secrets themselves, so that none is missing when the state is complete
	s.mu.Lock()
	if !s.listed(secrets) {
		s.mu.Unlock()
		return nil, view.Touched{}, false
	}
	pending, since := s.pending, s.since
	s.pending, s.since = map[ref]any{}, nil
	s.mu.Unlock()
	s.begun = true
	touched := view.Touched{
		Services: map[pools.ServiceKey]struct{}{},
		Slices:   map[pools.ServiceKey]struct{}{},
		Nodes:    map[string]struct{}{},
		VIPs:     map[string]struct{}{},
		Checks:   map[view.Check]struct{}{},
		Links:    map[string]struct{}{},
		BGPPeers: map[string]struct{}{},
		Since:    since,
	}
	for r, value := range pending {
		if !s.bgp.fold(r, value) {
			fold(s.view, &touched, r, value)
		}
	}
	s.bgp.resolve(s.view, &touched, secrets)
	return s.view, touched, true
}

// fold puts one changed object into the View.
func fold(v *view.View, touched *view.Touched, r ref, value any) {
	switch r.kind {
	case kindService:
		foldService(v, touched, r.key, value)
	case kindSlice:
		if v.Slices[r.key] == nil {
			v.Slices[r.key] = map[string]view.Slice{}
		}
		put(v.Slices[r.key], r.slice, value)
		if len(v.Slices[r.key]) == 0 {
			delete(v.Slices, r.key)
		}
		touched.Slices[r.key] = struct{}{}
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
	case kindPool:
		before := v.Pools[r.key.Name]
		if after, is := value.(view.Pool); is && after.Ranges == nil && after.Created == before.Created {
			// it became invalid, and ironlb-ccm has not written status.lastGood yet
			after.Ranges, after.ReturnRoutes = before.Ranges, before.ReturnRoutes
			value = after
		}
		put(v.Pools, r.key.Name, value)
		after := v.Pools[r.key.Name]
		if !maps.Equal(before.Labels, after.Labels) {
			touched.Advertisements, touched.BGPAdvertisements = true, true
		}
		touched.ReturnRoutes = touched.ReturnRoutes || !slices.Equal(before.ReturnRoutes, after.ReturnRoutes)
		touched.Pools = touched.Pools || before.Created != after.Created || !slices.Equal(before.Ranges, after.Ranges)
	case kindServiceCIDR:
		put(v.ServiceNetworks, r.key.Name, value)
		touched.ServiceNetworks = true
	case kindCheck:
		put(v.Checks, r.check, value)
		touched.Checks[r.check] = struct{}{}
	case kindLink:
		put(v.Links, r.key.Name, value)
		touched.Links[r.key.Name] = struct{}{}
	case kindHost:
		v.Host = value.(map[netip.Addr]struct{})
		touched.Host = true
	case kindGateway:
		v.Gateways = value.(map[netip.Addr]struct{})
		touched.Gateways = true
	}
}

// foldService puts a Service into the right part of the View.
func foldService(v *view.View, touched *view.Touched, key pools.ServiceKey, value any) {
	svc, _ := value.(served)
	_, was := v.OtherProxy[key]
	if svc.other != was {
		touched.ServiceNetworks = true
	}
	if svc.other {
		v.OtherProxy[key] = struct{}{}
	} else {
		delete(v.OtherProxy, key)
	}
	if _, was := v.Services[key]; !was && !svc.here {
		return
	}
	touched.Services[key] = struct{}{}
	if svc.here {
		v.Services[key] = svc.service
	} else {
		delete(v.Services, key)
	}
}

func put[K comparable, V any](m map[K]V, key K, value any) {
	if value == nil {
		delete(m, key)
		return
	}
	m[key] = value.(V)
}

// handler keeps the changes of one kind for Observe and triggers the loop. An update without effect on the plan, as
// most of a Node's, triggers nothing. It counts the events, each after the informer's store has it.
func (s *Source) handler(events *atomic.Uint64, convert func(any) (ref, any)) cache.ResourceEventHandler {
	gone := func(obj any) {
		events.Add(1)
		if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tomb.Obj
		}
		r, _ := convert(obj)
		s.put(r, nil)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			events.Add(1)
			s.put(convert(obj))
		},
		UpdateFunc: func(before, after any) {
			events.Add(1)
			r0, v0 := convert(before)
			r1, v1 := convert(after)
			if r0 != r1 {
				s.put(r0, nil)
			} else if reflect.DeepEqual(v0, v1) {
				s.triggers.take(r1)
				return
			}
			s.put(r1, v1)
		},
		DeleteFunc: gone,
	}
}

func (s *Source) put(r ref, value any) {
	if o, is := value.(peerObject); is && o.secret != "" {
		s.secrets.need()
	}
	at, known := s.triggers.take(r)
	s.mu.Lock()
	s.pending[r] = value
	if known && value != nil { // a deleted slice has the time of its last change
		s.since = append(s.since, at)
	}
	s.mu.Unlock()
	s.trigger()
}

// The kinds, by the names of their resources.
const (
	kindService       = "services"
	kindSlice         = "endpointslices"
	kindNode          = "nodes"
	kindVIP           = "virtualips"
	kindAdvertisement = "l2advertisements"
	kindServiceCIDR   = "servicecidrs"
	kindPool          = "ipaddresspools"

	kindBGPPeer          = "bgppeers"
	kindBGPAdvertisement = "bgpadvertisements"
	kindBFDProfile       = "bfdprofiles"
	kindCommunity        = "communities"
	kindSecret           = "secrets"

	// The node's own facts.
	kindCheck   = "check"
	kindHost    = "host"
	kindGateway = "gateway"
	kindLink    = "link"
)

// Checked records the result of a check, nil for one that is no longer made.
func (s *Source) Checked(c view.Check, result *view.CheckResult) {
	r := ref{kind: kindCheck, check: c}
	if result == nil {
		s.put(r, nil)
		return
	}
	s.put(r, *result)
}

// SetHost sets the addresses of this node's non-virtual interfaces. The map then belongs to the Source.
func (s *Source) SetHost(addrs map[netip.Addr]struct{}) { s.setOwn(kindHost, addrs) }

// SetGateways sets the next hops of this node. The map then belongs to the Source.
func (s *Source) SetGateways(addrs map[netip.Addr]struct{}) { s.setOwn(kindGateway, addrs) }

func (s *Source) setOwn(kind string, addrs map[netip.Addr]struct{}) {
	s.mu.Lock()
	before, known := s.own[kind]
	same := known && maps.Equal(before, addrs)
	s.own[kind] = addrs
	s.mu.Unlock()
	if !same {
		s.put(ref{kind: kind}, addrs)
	}
}

// SetLinks sets this node's interfaces on which addresses can be announced. The map then belongs to the Source.
func (s *Source) SetLinks(links map[string]view.Link) {
	s.mu.Lock()
	before := s.links
	s.links = links
	s.mu.Unlock()
	for name := range before {
		if _, still := links[name]; !still {
			s.put(ref{kind: kindLink, key: pools.ServiceKey{Name: name}}, nil)
		}
	}
	for name, link := range links {
		if have, was := before[name]; !was || !reflect.DeepEqual(have, link) {
			s.put(ref{kind: kindLink, key: pools.ServiceKey{Name: name}}, link)
		}
	}
}

// convertService returns the conversion of Services.
func convertService(o ServiceOptions) func(obj any) (ref, any) {
	return func(obj any) (ref, any) {
		svc := obj.(*corev1.Service)
		r := ref{kind: kindService, key: pools.ServiceKey{Namespace: svc.Namespace, Name: svc.Name}}
		if out := serviceOf(svc, o); out.here || out.other {
			return r, out
		}
		return r, nil
	}
}

func convertServiceCIDR(obj any) (ref, any) {
	cidr := obj.(*networkingv1.ServiceCIDR)
	return ref{kind: kindServiceCIDR, key: pools.ServiceKey{Name: cidr.Name}}, prefixes(cidr.Spec.CIDRs)
}

func convertSlice(obj any) (ref, any) {
	slice := obj.(*discoveryv1.EndpointSlice)
	return refOfSlice(slice), sliceOf(slice)
}

func refOfSlice(slice *discoveryv1.EndpointSlice) ref {
	service := pools.ServiceKey{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
	return ref{kind: kindSlice, key: service, slice: slice.Name}
}

func convertNode(ignoreExclude bool) func(any) (ref, any) {
	return func(obj any) (ref, any) {
		node := obj.(*corev1.Node)
		return ref{kind: kindNode, key: pools.ServiceKey{Name: node.Name}}, nodeOf(node, ignoreExclude)
	}
}

func convertVIP(obj any) (ref, any) {
	vip := obj.(*v1alpha1.VirtualIP)
	return ref{kind: kindVIP, key: pools.ServiceKey{Name: vip.Name}}, vipOf(vip)
}

func convertPool(obj any) (ref, any) {
	pool := obj.(*v1alpha1.IPAddressPool)
	return ref{kind: kindPool, key: pools.ServiceKey{Name: pool.Name}}, poolOf(pool)
}

func convertAdvertisement(obj any) (ref, any) {
	ad := obj.(*v1alpha1.L2Advertisement)
	return ref{kind: kindAdvertisement, key: pools.ServiceKey{Name: ad.Name}}, advertisementOf(ad)
}

// derived is a value that is computed from all objects of some kinds, and again only after one of them changed.
type derived[T any] struct {
	mu       sync.Mutex
	computed bool
	seen     uint64 // events at the start of the computation
	value    T
}

// of returns the value. The caller must not change it. kinds must be the same in each call.
func (d *derived[T]) of(s *Source, compute func() T, kinds ...string) T {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := uint64(0)
	for _, kind := range kinds {
		now += s.events[kind].Load()
	}
	if !d.computed || now != d.seen {
		d.value, d.seen, d.computed = compute(), now, true
	}
	return d.value
}

// triggers are the times at which Pods or Services changed that changed EndpointSlices: the annotation
// endpoints.kubernetes.io/last-change-trigger-time, which is not kept in the objects. As in kube-proxy, times before
// this process do not count.
type triggers struct {
	began time.Time

	mu sync.Mutex
	// at are the times of slices whose change is not in the View yet.
	at map[ref]time.Time
}

func newTriggers() *triggers { return &triggers{began: time.Now(), at: map[ref]time.Time{}} }

// record returns the trim of EndpointSlices that records the time before the annotation is cut off.
func (t *triggers) record(trim cache.TransformFunc) cache.TransformFunc {
	return func(obj any) (any, error) {
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok {
			return trim(obj) // a tombstone
		}
		at, err := time.Parse(time.RFC3339Nano, slice.Annotations[corev1.EndpointsLastChangeTriggerTime])
		if err == nil && at.After(t.began) {
			t.mu.Lock()
			t.at[refOfSlice(slice)] = at
			t.mu.Unlock()
		}
		return trim(obj)
	}
}

// take returns the time of a changed slice, and deletes it.
func (t *triggers) take(r ref) (at time.Time, known bool) {
	if r.kind != kindSlice {
		return time.Time{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at, known = t.at[r]
	delete(t.at, r)
	return at, known
}
