// Package warnings publishes to the author of a Service what keeps it from being served as expected.
//
// Publisher evaluates one Service at a time and writes an Event for each new warning, and one condition on a Service
// that IronLB serves. Warnings follow from API objects alone: the Service itself, the addresses that no Service may
// have (guard, with the rules of the speakers), endpoints that an older Service has (claims), and addresses that no
// node announces (announcements). None of them keeps a Service from its address.
package warnings

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Publisher publishes warnings about Services, derived from the API objects alone: an Event for each new
// warning, and a condition on a managed Service. A warning already in the condition triggers no Event, also after a
// leader change.
type Publisher struct {
	log      *slog.Logger
	events   record.EventRecorder
	settings *Settings
	guard    *guard
	// foreign reports whether another controller serves a Service.
	foreign  func(*v1.Service) bool
	services corelisters.ServiceLister
	api      corev1.ServicesGetter
	synced   []cache.InformerSynced
	queue    workqueue.TypedRateLimitingInterface[pools.ServiceKey]

	announcements *announcements
	// announced contains the warnings of announcements per Service, as of the last evaluation.
	announced map[pools.ServiceKey]string

	claims *claims
	// refused are the addresses of Services that no Service may have, as of the last evaluation.
	refused   map[pools.ServiceKey][]refusedAddress
	published map[pools.ServiceKey]string // the last warnings published for a Service
	// episodes contains, by reason, when the last episode of a warning of announcements ended; zero: it lasts.
	episodes map[pools.ServiceKey]map[string]time.Time
	// written contains what was written to a Service and is not in the cache yet.
	written map[pools.ServiceKey]string
}

// Allocations is what the warnings depend on of the allocation of addresses.
type Allocations interface {
	// Foreign reports whether another controller serves the Service.
	Foreign(svc *v1.Service) bool
	// Standing returns the addresses that the Service shows rightfully.
	Standing(svc *v1.Service) []pools.Address
	// PoolOf returns the pool that has an address, empty for none.
	PoolOf(addr netip.Addr) string
	// Withhold sets the addresses of what a refusal names: no Service gets them.
	Withhold(r pools.Refusal, addrs []netip.Addr)
	// Adopted reports whether recorded addresses have been adopted: before that no Service holds anything.
	Adopted() bool
}

// Config is what the publisher needs.
type Config struct {
	Log        *slog.Logger
	Events     record.EventRecorder
	Settings   *Settings
	Allocation Allocations
	Core       informers.SharedInformerFactory
	Kinds      watch.Kinds
	Endpoints  *watch.EndpointSlices
	Unserved   *Unserved
	API        corev1.ServicesGetter
}

// Settings are the flags that decide which warnings a Service gets.
type Settings struct {
	servicerecord.Scope
	// ServiceProxy means that the speakers serve every Service that names no other proxy. ExternalIPCIDRs contain the
	// external IPs that they serve.
	ServiceProxy    bool
	ExternalIPCIDRs []string
}

// Back-off of a failing write.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

// New returns a publisher that watches the objects that it depends on.
func New(ctx context.Context, c Config) (*Publisher, error) {
	services := c.Core.Core().V1().Services()
	p := newPublisher(c.Log, c.Events, newGuard(c.Settings), services.Lister(), c.API, newAnnouncements(c.Unserved))
	p.guard.withhold = c.Allocation.Withhold
	p.foreign, p.guard.poolOf, p.announcements.held = c.Allocation.Foreign, c.Allocation.PoolOf, c.Allocation.Standing
	known, err := p.guard.watch(ctx, c.Log, c.Core, c.Kinds, c.Endpoints)
	if err != nil {
		return nil, err
	}
	reg, err := services.Informer().AddEventHandler(p.handler())
	if err != nil {
		return nil, fmt.Errorf("watching Services: %w", err)
	}
	fed, err := p.announcements.watch(ctx, c.Kinds)
	if err != nil {
		return nil, err
	}
	p.synced = append(append(known, fed...), reg.HasSynced, c.Allocation.Adopted)
	return p, nil
}

// Withheld are the sync functions of the addresses that are passed to Allocations.Withhold.
func (p *Publisher) Withheld() []cache.InformerSynced { return p.guard.fed }

func newPublisher(
	log *slog.Logger, events record.EventRecorder, g *guard, services corelisters.ServiceLister, api corev1.ServicesGetter, of *announcements,
) *Publisher {
	a := &Publisher{
		log: log, events: events, settings: g.settings, guard: g, services: services, api: api,
		foreign:       func(*v1.Service) bool { return false },
		announcements: of, announced: map[pools.ServiceKey]string{},
		claims:  newClaims(func(addr netip.Addr) []pools.ServiceKey { return g.endpoints.At(addr) }),
		refused: map[pools.ServiceKey][]refusedAddress{}, published: map[pools.ServiceKey]string{}, written: map[pools.ServiceKey]string{},
		episodes: map[pools.ServiceKey]map[string]time.Time{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[pools.ServiceKey](firstRetry, lastRetry),
			workqueue.TypedRateLimitingQueueConfig[pools.ServiceKey]{Name: "ironlb-warnings"},
		),
	}
	of.forwarding = g.settings.Forwarding
	g.changed, g.endpointsChanged = func() { a.queue.Add(allServices) }, a.queue.Add
	a.announcements.changed = a.queue.Add
	a.announcements.unserved.onChange(func() { a.queue.Add(allServices) })
	return a
}

// allServices means all Services. Only those are queued whose refused addresses or announcement warnings changed.
var allServices = pools.ServiceKey{}

// queueChanged queues them.
func (p *Publisher) queueChanged() error {
	all, err := p.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	for _, svc := range all {
		key, ours := servicerecord.KeyOf(svc), p.serves(svc)
		changed := !slices.Equal(p.guard.refused(svc, ours), p.refused[key])
		if ours && !changed {
			current, recheck := p.announcements.warnings(svc)
			changed = recheck > 0 || joined(current) != p.announced[key]
		}
		if changed {
			p.queue.Add(key)
		}
	}
	return nil
}

func (p *Publisher) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { p.queue.Add(servicerecord.KeyOf(o.(*v1.Service))) },
		UpdateFunc: func(_, o any) { p.queue.Add(servicerecord.KeyOf(o.(*v1.Service))) },
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			if svc, ok := o.(*v1.Service); ok {
				p.queue.Add(servicerecord.KeyOf(svc))
			}
		},
	}
}

// Run returns when ctx ends. It processes one Service at a time: there is seldom anything to write.
func (p *Publisher) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), p.synced...) {
		return nil
	}
	defer context.AfterFunc(ctx, p.queue.ShutDown)()
	all, err := p.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	for _, svc := range all { // before any evaluation: warnings that an earlier leader published depend on all claims
		if svc.DeletionTimestamp == nil {
			p.claim(svc)
		}
	}
	for {
		key, quit := p.queue.Get()
		if quit {
			return nil
		}
		if err := p.evaluate(ctx, key); err == nil || apierrors.IsConflict(err) { // the newer version comes through the handler
			p.queue.Forget(key)
		} else if ctx.Err() == nil {
			p.queue.AddRateLimited(key)
			p.log.Warn("condition of Service not written", "service", key, "error", err, "tries", p.queue.NumRequeues(key))
		}
		p.queue.Done(key)
	}
}

// evaluate compares the current warnings of a Service with the published ones.
func (p *Publisher) evaluate(ctx context.Context, key pools.ServiceKey) error {
	if key == allServices {
		return p.queueChanged()
	}
	svc, err := p.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && svc.DeletionTimestamp != nil {
		p.requeue(p.claims.set(claimant{service: key}, nil))
		delete(p.published, key)
		delete(p.written, key)
		delete(p.refused, key)
		delete(p.announced, key)
		delete(p.episodes, key)
		return nil
	}
	if err != nil {
		return err
	}
	ours, refused := p.claim(svc)
	if p.refused[key] = refused; len(refused) == 0 {
		delete(p.refused, key)
	}
	served := ours || p.settings.proxies(svc)
	var all []warning
	for _, r := range refused {
		all = append(all, r.warning())
	}
	var transient []warning
	if why := svc.Annotations[v1alpha1.AnnotationTooLarge]; why != "" {
		all = append(all, warning{v1alpha1.ReasonTooLarge, why})
	} else if ours {
		transient = p.unannounced(svc)
		all = append(all, transient...)
		all = append(all, serviceWarnings(svc, p.settings.Forwarding)...)
	}
	if served && svc.Annotations[v1alpha1.AnnotationTooLarge] == "" {
		all = append(all, p.claims.refused(p.guard.endpoints.Of(key))...)
	}
	all = abridged(append(all, p.claims.warnings(key)...))
	have := meta.FindStatusCondition(svc.Status.Conditions, condition.Warnings)
	if err := p.write(ctx, svc, have, all, served); err != nil {
		return err
	}
	before, known := p.published[key]
	if !known && have != nil {
		before = have.Message // written by an earlier leader
	}
	if p.published[key] = joined(all); len(all) == 0 {
		delete(p.published, key)
	}
	lasting := p.lasting(key, transient)
	for _, one := range all {
		if !lasting[one.reason] && !strings.Contains(before, one.message) {
			p.events.Event(svc, v1.EventTypeWarning, one.reason, one.message)
		}
	}
	return nil
}

// claim records what the Service claims, and queues the Services that this affects.
func (p *Publisher) claim(svc *v1.Service) (ours bool, refused []refusedAddress) {
	ours = p.serves(svc)
	refused = p.guard.refused(svc, ours)
	me := claimant{service: servicerecord.KeyOf(svc), created: svc.CreationTimestamp.Unix()}
	p.requeue(p.claims.set(me, endpointsOf(svc, ours, refused)))
	return ours, refused
}

// newAfter is how long a warning of announcements must be absent until its return is a new episode, with a new Event.
const newAfter = 5 * time.Minute

// lasting returns the reasons whose episode began earlier, and records those of the present warnings.
func (p *Publisher) lasting(key pools.ServiceKey, present []warning) map[string]bool {
	now, episodes, out := p.announcements.now(), map[string]time.Time{}, map[string]bool{}
	for reason, ended := range p.episodes[key] {
		if ended.IsZero() {
			ended = now
		}
		if now.Sub(ended) < newAfter {
			episodes[reason], out[reason] = ended, true
		}
	}
	for _, one := range present {
		episodes[one.reason] = time.Time{}
	}
	if p.episodes[key] = episodes; len(episodes) == 0 {
		delete(p.episodes, key)
	}
	return out
}

// warningsPerReason is the maximum number of warnings per reason: a tenant can cause thousands.
const warningsPerReason = 10

// abridged keeps warningsPerReason warnings per reason, and appends the number of those left out.
func abridged(all []warning) (out []warning) {
	seen := map[string]int{}
	for _, one := range all {
		if seen[one.reason]++; seen[one.reason] <= warningsPerReason {
			out = append(out, one)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(seen)) {
		if more := seen[reason] - warningsPerReason; more > 0 {
			out = append(out, warning{reason, fmt.Sprintf("%d more of reason %s", more, reason)})
		}
	}
	return out
}

// unannounced returns the warnings of announcements, and requeues the Service if there may be more later.
func (p *Publisher) unannounced(svc *v1.Service) []warning {
	key := servicerecord.KeyOf(svc)
	warnings, recheck := p.announcements.warnings(svc)
	if p.announced[key] = joined(warnings); len(warnings) == 0 {
		delete(p.announced, key)
	}
	if recheck > 0 {
		p.queue.AddAfter(key, recheck)
	}
	return warnings
}

// serves reports whether IronLB assigns the addresses of the Service.
func (p *Publisher) serves(svc *v1.Service) bool {
	return p.settings.Wants(svc) && !p.foreign(svc)
}

func (p *Publisher) requeue(others []pools.ServiceKey) {
	for _, key := range others {
		p.queue.Add(key)
	}
}

// write sets the condition of a served Service to all warnings, or removes it if there are none. A missing condition
// equals an empty message.
func (p *Publisher) write(ctx context.Context, svc *v1.Service, have *metav1.Condition, all []warning, served bool) error {
	key, want := servicerecord.KeyOf(svc), metav1.Condition{Type: condition.Warnings, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now()}
	if served && len(all) > 0 {
		want.Reason, want.Message = all[0].reason, joined(all)
	}
	seen := metav1.Condition{}
	if have != nil {
		seen, want.LastTransitionTime = *have, have.LastTransitionTime
	}
	if last, waiting := p.written[key]; waiting && last == want.Message {
		if last == seen.Message {
			delete(p.written, key)
		}
		return nil
	}
	if want.Reason == seen.Reason && want.Message == seen.Message {
		return nil
	}
	entry := any(want)
	if want.Message == "" {
		entry = map[string]string{"$patch": "delete", "type": condition.Warnings}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": svc.UID, "resourceVersion": svc.ResourceVersion},
		"status":   map[string]any{"conditions": []any{entry}},
	})
	if err != nil {
		return fmt.Errorf("encoding the warnings of Service %s: %w", key, err)
	}
	_, err = p.api.Services(svc.Namespace).Patch(ctx, svc.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !servicerecord.Gone(err) {
		return fmt.Errorf("writing the warnings of Service %s: %w", key, err)
	}
	p.written[key] = want.Message
	return nil
}

// proxies reports whether the speakers serve the Service as kube-proxy would, including its external IPs.
func (s *Settings) proxies(svc *v1.Service) bool {
	proxy, labelled := svc.Labels[v1alpha1.LabelProxy]
	return (s.ServiceProxy && !labelled || proxy == v1alpha1.ProxyName) && svc.Spec.ClusterIP != "" && svc.Spec.ClusterIP != v1.ClusterIPNone &&
		svc.Spec.Type != v1.ServiceTypeExternalName
}
