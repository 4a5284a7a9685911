package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/ironlb/ironlb/pools"
)

// conditionAdvice is set on a managed Service while there are warnings for its author. Most Services have none.
const conditionAdvice = "ironlb.io/Advice"

// adviser publishes warnings about Services, derived from the API objects alone: an Event for each new warning, and a
// condition on a managed Service. A warning already in the condition triggers no Event, also after a leader change.
type adviser struct {
	log      *slog.Logger
	events   record.EventRecorder
	settings *Settings
	guard    *guard
	// theirs reports whether another controller serves a Service.
	theirs   func(*v1.Service) bool
	services corelisters.ServiceLister
	api      corev1.ServicesGetter
	synced   []cache.InformerSynced
	queue    workqueue.TypedRateLimitingInterface[pools.ServiceKey]

	announcements *announcements
	// announced contains the warnings of announcements per Service, as of the last evaluation.
	announced map[pools.ServiceKey]string

	claims *claims
	// refused are the addresses of Services that no Service may have, as of the last evaluation.
	refused map[pools.ServiceKey][]refusedAddress
	told    map[pools.ServiceKey]string // the last warnings published for a Service
	// written contains what was written to a Service and is not in the cache yet.
	written map[pools.ServiceKey]string
}

// advise starts the adviser.
func (c *Cloud) advise(ctx context.Context) error {
	services := c.core.Core().V1().Services()
	a := newAdviser(c.log, c.events, newGuard(&c.settings), services.Lister(), c.registrar.api)
	a.theirs = c.ledger.theirs
	known, err := c.guardAddresses(ctx, a.guard)
	if err != nil {
		return err
	}
	reg, err := services.Informer().AddEventHandler(a.handler())
	if err != nil {
		return fmt.Errorf("watching Services: %w", err)
	}
	fed, err := c.watchAnnouncements(ctx, a.announcements)
	if err != nil {
		return err
	}
	adopted := func() bool { // before adoption no Service holds anything
		select {
		case <-c.ledger.ready:
			return true
		default:
			return false
		}
	}
	a.synced = append(append(known, fed...), reg.HasSynced, adopted)
	c.run(ctx, PoolController, a.Run)
	return nil
}

func newAdviser(log *slog.Logger, events record.EventRecorder, g *guard, services corelisters.ServiceLister, api corev1.ServicesGetter) *adviser {
	a := &adviser{
		log: log, events: events, settings: g.settings, guard: g, services: services, api: api,
		theirs:        func(*v1.Service) bool { return false },
		announcements: newAnnouncements(), announced: map[pools.ServiceKey]string{},
		claims: newClaims(), refused: map[pools.ServiceKey][]refusedAddress{}, told: map[pools.ServiceKey]string{}, written: map[pools.ServiceKey]string{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[pools.ServiceKey](time.Second, classLastRetry),
			workqueue.TypedRateLimitingQueueConfig[pools.ServiceKey]{Name: "ironlb-advice"},
		),
	}
	g.changed = func() { a.queue.Add(every) }
	a.announcements.changed = a.queue.Add
	return a
}

// every stands for all Services. Only those are queued whose refused addresses or announcement warnings changed.
var every = pools.ServiceKey{}

// lookForChanges queues them.
func (a *adviser) lookForChanges() error {
	all, err := a.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	for _, svc := range all {
		key, ours := keyOf(svc), a.serves(svc)
		changed := !slices.Equal(a.guard.refused(svc, ours), a.refused[key])
		if ours && !changed {
			said, again := a.announcements.advice(svc)
			changed = again > 0 || joined(said) != a.announced[key]
		}
		if changed {
			a.queue.Add(key)
		}
	}
	return nil
}

func (a *adviser) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.queue.Add(keyOf(o.(*v1.Service))) },
		UpdateFunc: func(_, o any) { a.queue.Add(keyOf(o.(*v1.Service))) },
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			if svc, ok := o.(*v1.Service); ok {
				a.queue.Add(keyOf(svc))
			}
		},
	}
}

// Run returns when ctx ends. It processes one Service at a time: there is seldom anything to write.
func (a *adviser) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), a.synced...) {
		return nil
	}
	defer context.AfterFunc(ctx, a.queue.ShutDown)()
	for {
		key, quit := a.queue.Get()
		if quit {
			return nil
		}
		if err := a.look(ctx, key); err == nil || apierrors.IsConflict(err) { // the newer version comes through the handler
			a.queue.Forget(key)
		} else if ctx.Err() == nil {
			a.queue.AddRateLimited(key)
			a.log.Warn("condition of Service not written", "service", key, "error", err, "tries", a.queue.NumRequeues(key))
		}
		a.queue.Done(key)
	}
}

// look compares the current warnings of a Service with the published ones.
func (a *adviser) look(ctx context.Context, key pools.ServiceKey) error {
	if key == every {
		return a.lookForChanges()
	}
	svc, err := a.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && svc.DeletionTimestamp != nil {
		a.again(a.claims.set(claimant{service: key}, nil))
		delete(a.told, key)
		delete(a.written, key)
		delete(a.refused, key)
		delete(a.announced, key)
		return nil
	}
	if err != nil {
		return err
	}
	ours := a.serves(svc)
	refused := a.guard.refused(svc, ours)
	if a.refused[key] = refused; len(refused) == 0 {
		delete(a.refused, key)
	}
	claimed := endpointsOf(svc, ours, refused)
	a.again(a.claims.set(claimant{service: key, created: svc.CreationTimestamp.Unix()}, claimed))
	var all []advice
	for _, r := range refused {
		all = append(all, r.advice())
	}
	if ours {
		all = append(all, a.unannounced(svc)...)
		all = append(all, adviceOn(svc)...)
	}
	all = abridged(append(all, a.claims.advice(key)...))
	have := meta.FindStatusCondition(svc.Status.Conditions, conditionAdvice)
	if err := a.write(ctx, svc, have, all, ours || a.settings.proxies(svc)); err != nil {
		return err
	}
	before, known := a.told[key]
	if !known && have != nil {
		before = have.Message // written by an earlier leader
	}
	if a.told[key] = joined(all); len(all) == 0 {
		delete(a.told, key)
	}
	for _, one := range all {
		if !strings.Contains(before, one.message) {
			a.events.Event(svc, v1.EventTypeWarning, one.reason, one.message)
		}
	}
	return nil
}

// adviceOfKind is the maximum number of warnings per reason: a tenant can cause thousands.
const adviceOfKind = 10

// abridged keeps adviceOfKind warnings per reason, and appends the number of those left out.
func abridged(all []advice) (out []advice) {
	seen := map[string]int{}
	for _, one := range all {
		if seen[one.reason]++; seen[one.reason] <= adviceOfKind {
			out = append(out, one)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(seen)) {
		if more := seen[reason] - adviceOfKind; more > 0 {
			out = append(out, advice{reason, fmt.Sprintf("%d more of reason %s", more, reason)})
		}
	}
	return out
}

// unannounced returns the warnings of announcements, and requeues the Service if there may be more later.
func (a *adviser) unannounced(svc *v1.Service) []advice {
	key := keyOf(svc)
	said, again := a.announcements.advice(svc)
	if a.announced[key] = joined(said); len(said) == 0 {
		delete(a.announced, key)
	}
	if again > 0 {
		a.queue.AddAfter(key, again)
	}
	return said
}

// serves reports whether IronLB assigns the addresses of the Service.
func (a *adviser) serves(svc *v1.Service) bool { return a.settings.wants(svc) && !a.theirs(svc) }

func (a *adviser) again(others []pools.ServiceKey) {
	for _, key := range others {
		a.queue.Add(key)
	}
}

// write sets the condition of a served Service to all warnings, or removes it if there are none. A missing condition
// equals an empty message.
func (a *adviser) write(ctx context.Context, svc *v1.Service, have *metav1.Condition, all []advice, served bool) error {
	key, want := keyOf(svc), metav1.Condition{Type: conditionAdvice, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now()}
	if served && len(all) > 0 {
		want.Reason, want.Message = all[0].reason, joined(all)
	}
	seen := metav1.Condition{}
	if have != nil {
		seen, want.LastTransitionTime = *have, have.LastTransitionTime
	}
	if last, waiting := a.written[key]; waiting && last == want.Message {
		if last == seen.Message {
			delete(a.written, key)
		}
		return nil
	}
	if want.Reason == seen.Reason && want.Message == seen.Message {
		return nil
	}
	condition := any(want)
	if want.Message == "" {
		condition = map[string]string{"$patch": "delete", "type": conditionAdvice}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": svc.UID, "resourceVersion": svc.ResourceVersion},
		"status":   map[string]any{"conditions": []any{condition}},
	})
	if err != nil {
		return fmt.Errorf("encoding the advice on Service %s: %w", key, err)
	}
	_, err = a.api.Services(svc.Namespace).Patch(ctx, svc.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !gone(err) {
		return fmt.Errorf("writing the advice on Service %s: %w", key, err)
	}
	a.written[key] = want.Message
	return nil
}
