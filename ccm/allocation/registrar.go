package allocation

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

// Registrar assigns addresses to Services and writes them, for the service controller and for the class controller. One
// controller never calls it for the same Service concurrently; both may, when a Service passes from one to the other.
type Registrar struct {
	Log      *slog.Logger
	events   record.EventRecorder
	settings *servicerecord.Scope
	ledger   *Ledger
	api      corev1.ServicesGetter
	services corelisters.ServiceLister // of the cache; may be nil
}

// serve assigns what the Service requests, writes the outcome if the object does not have it, and publishes it if it is
// new. As with end, the error is a conflict if the Service has changed since: see retryOnConflict.
func (r *Registrar) serve(ctx context.Context, svc *v1.Service) error {
	if err := r.ledger.WaitReady(ctx); err != nil {
		return fmt.Errorf("serving Service %s: %w", servicerecord.KeyOf(svc), err)
	}
	if r.ledger.Foreign(svc) {
		if servicerecord.Recorded(svc) || r.ledger.hasEntry(svc) {
			return r.releaseToOther(ctx, svc)
		}
		return nil
	}
	start := time.Now()
	d, err := r.ledger.Assign(ctx, svc)
	if err != nil {
		return err
	}
	want := r.settings.OutcomeOf(svc, d.Lease, d.Reason, d.Message)
	have, sure := r.ledger.newest(svc)
	want.Reallocated = servicerecord.Reallocation(svc, have, d.Reallocated)
	if sure && have.Equal(want) {
		r.ledger.Written(svc, d.Lease, want, nil)
		r.ledger.setPublished(svc, have, want)
		return r.releaseDeleted(ctx, svc)
	}
	patch, err := want.PatchOf(svc, have)
	if err != nil {
		return err
	}
	after, err := r.patch(ctx, svc, have, patch)
	if servicerecord.Gone(err) {
		return r.ledger.Release(ctx, servicerecord.KeyOf(svc), svc.UID) // its deletion may have been handled before the assignment
	}
	if err != nil {
		return fmt.Errorf("writing the address of Service %s: %w", servicerecord.KeyOf(svc), err)
	}
	r.ledger.Written(svc, d.Lease, want, after)
	if len(want.Ingress) > 0 && !have.SameIngress(want) {
		measureAssignment(time.Since(start))
	}
	if have.From != want.From || !have.SameIngress(want) {
		r.Log.Info("lease changed", "service", servicerecord.KeyOf(svc), "holds", servicerecord.Described(d.Lease), "before", servicerecord.IPs(have.Ingress),
			"reason", d.Reason, "why", changed(d.Moves))
	}
	r.publish(svc, have, want, d)
	return nil
}

// changed describes the addresses that differ from before, and why. Empty: none does.
func changed(moves []pools.Move) string {
	texts := make([]string, len(moves))
	for i, m := range moves {
		texts[i] = fmt.Sprintf("The address changed from %s to %s: %s", m.From, m.To, m.Why)
	}
	return strings.Join(texts, ". ")
}

// addressChanged is the reason of the Event of a change of address.
const addressChanged = "AddressChanged"

// publish publishes a change of outcome, once. An object that had the same addresses before it had a condition counts
// as unchanged.
func (r *Registrar) publish(svc *v1.Service, have, want servicerecord.Outcome, d pools.Decision) {
	before, warning := r.ledger.setPublished(svc, have, want), d.Reason.Warning()
	if before.SameOutcome(want) || !warning && before.Condition.Type == "" && len(before.Ingress) > 0 && before.SameIngress(want) {
		return
	}
	if d.Reason == pools.NoPool && svc.Spec.LoadBalancerClass == nil {
		return // it may be another controller's
	}
	kind, reason, message := v1.EventTypeNormal, want.Condition.Reason, want.Condition.Message
	if len(d.Moves) > 0 {
		reason, message = addressChanged, changed(d.Moves)+". "+message
	}
	if warning {
		kind, reason = v1.EventTypeWarning, want.Condition.Reason
		r.Log.Warn("request not met", "service", servicerecord.KeyOf(svc), "reason", want.Condition.Reason, "message", want.Condition.Message)
	}
	r.events.Event(svc, kind, reason, message)
}

// settled reports whether the Service is as it should be, so that nothing is left to do. The call may assign an address
// that is written later.
func (r *Registrar) settled(ctx context.Context, svc *v1.Service) bool {
	d, ok, err := r.ledger.assignIdle(ctx, svc)
	if err != nil || !ok {
		return false
	}
	want := r.settings.OutcomeOf(svc, d.Lease, d.Reason, d.Message)
	have, sure := r.ledger.newest(svc)
	want.Reallocated = servicerecord.Reallocation(svc, have, d.Reallocated)
	if !sure || !have.Equal(want) {
		return false
	}
	r.ledger.Written(svc, d.Lease, want, nil)
	r.ledger.setPublished(svc, have, want)
	return r.releaseDeleted(ctx, svc) == nil
}

// diverged reports whether another writer changed what IronLB wrote.
func (r *Registrar) diverged(svc *v1.Service) bool {
	want, ok := r.ledger.current(svc)
	if !ok || !r.settings.Wants(svc) {
		return false
	}
	have, _ := r.ledger.newest(svc)
	want.Reallocated = servicerecord.Reallocation(svc, have, false)
	return !have.Equal(want)
}

// unmet reports whether the Service is managed and does not have all that it requests.
func (r *Registrar) unmet(svc *v1.Service) bool {
	return r.settings.Wants(svc) && !r.ledger.Foreign(svc) && servicerecord.OutcomeIn(svc).Condition.Reason != string(pools.Allocated)
}

// clear removes IronLB's record and the finalizers from a Service that is not managed any more. It frees what the
// Service held only after that, so that the addresses are no longer visible there. If the Service became managed again
// meanwhile, also through the other controller, its new addresses stay.
func (r *Registrar) clear(ctx context.Context, svc *v1.Service, finalizers ...string) error {
	return r.end(ctx, svc, servicerecord.Outcome{}, finalizers)
}

// end reduces the Service to the outcome left, removes the finalizers, and frees what it held.
func (r *Registrar) end(ctx context.Context, svc *v1.Service, left servicerecord.Outcome, finalizers []string) error {
	decision := r.ledger.decision(svc)
	have, sure := r.ledger.newest(svc)
	have.Finalizer = ""
	if !sure || !have.Equal(left) || len(finalizers) > 0 {
		patch, err := left.PatchOf(svc, have, finalizers...)
		if err != nil {
			return err
		}
		if _, err := r.patch(ctx, svc, have, patch); err != nil && !servicerecord.Gone(err) {
			return fmt.Errorf("clearing the address of Service %s: %w", servicerecord.KeyOf(svc), err)
		}
	}
	return r.ledger.releaseUnchanged(ctx, svc, decision)
}

// patch writes to the Service if its version is still the one decided about: otherwise the error is a conflict. have is
// the outcome before the write.
func (r *Registrar) patch(ctx context.Context, svc *v1.Service, have servicerecord.Outcome, patch []byte) (*v1.Service, error) {
	after, err := r.api.Services(svc.Namespace).Patch(ctx, svc.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !servicerecord.Gone(err) {
		r.ledger.notWritten(svc, have, !apierrors.IsConflict(err))
	}
	return after, err
}

// retryOnConflict runs decide for the Service. If the API server refuses the write because the Service has changed, it
// runs it again for the current Service. The controllers' own retry would be 5 s later, with a Warning. If the
// Service is deleted by then, its entry in the ledger is released.
func (r *Registrar) retryOnConflict(
	ctx context.Context, svc *v1.Service, decide func(context.Context, *v1.Service) error,
) error {
	exists, err := servicerecord.RetryOnConflict(ctx, r.api, svc, func(now *v1.Service) error {
		if now != svc && now.DeletionTimestamp != nil && !servicerecord.Recorded(now) && !servicerecord.HasFinalizer(now, servicerecord.Finalizer) {
			return r.ledger.Release(ctx, servicerecord.KeyOf(now), now.UID) // nothing was written, so no controller cleans up
		}
		if now != svc {
			r.ledger.disown(now)
		}
		return decide(ctx, now)
	})
	if !exists {
		return r.ledger.Release(ctx, servicerecord.KeyOf(svc), svc.UID)
	}
	return err
}

// errOlderCopy is the conflict of a decision about an outdated version of the Service: a newer one was decided about.
func errOlderCopy(svc *v1.Service) error {
	return apierrors.NewConflict(v1.Resource("services"), servicerecord.KeyOf(svc).String(),
		fmt.Errorf("version %s is not the last one decided about", svc.ResourceVersion))
}

// A previously managed Service is a load balancer that IronLB served: without a class since --only-class was set, or of
// another class than IronLB's since that was renamed or the Service got another one. It keeps its address unchanged
// while it shows it. See docs/design/ccm-previously-managed.md.

// keepPreviouslyManaged keeps what such a Service holds, without a write. If it shows something else, another
// controller has taken it over: IronLB's record is removed, and what it held is freed.
func (r *Registrar) keepPreviouslyManaged(ctx context.Context, svc *v1.Service) error {
	if r.ledger.keep(svc) {
		return nil
	}
	return r.releaseToOther(ctx, svc)
}

// releaseToOther removes IronLB's record and finalizers from a Service of another controller, and frees what it held.
// The service controller's finalizer belongs to the other controller, unless the Service has a class.
func (r *Registrar) releaseToOther(ctx context.Context, svc *v1.Service) error {
	err := r.end(ctx, svc, servicerecord.Outcome{Others: true}, servicerecord.FinalizersOn(svc, r.settings.OnlyClass, svc.Spec.LoadBalancerClass != nil))
	if err == nil {
		r.Log.Info("Service released to another controller", "service", servicerecord.KeyOf(svc), "shows", servicerecord.IPs(svc.Status.LoadBalancer.Ingress))
	}
	return err
}

// cleanUp removes IronLB's fields from a Service that is being deleted or is no longer a load balancer, and then frees
// what it held.
func (r *Registrar) cleanUp(ctx context.Context, svc *v1.Service) error {
	given := func(a netip.Addr) bool { _, named := servicerecord.RecordedFor(svc, a); return named }
	if len(svc.Status.LoadBalancer.Ingress) > 0 && !r.ledger.holds(svc) && !slices.ContainsFunc(servicerecord.IngressOf(svc), given) {
		return r.releaseToOther(ctx, svc) // another controller's before its end
	}
	return r.clear(ctx, svc, servicerecord.FinalizersOn(svc, r.settings.OnlyClass, true)...)
}

// inCache reports whether the cache has the Service.
func (r *Registrar) inCache(svc *v1.Service) bool {
	if r.services == nil {
		return true
	}
	now, err := r.services.Services(svc.Namespace).Get(svc.Name)
	return err == nil && now.UID == svc.UID
}

// releaseDeleted frees what was assigned to a Service without a write, if its deletion has been handled before: no
// write will fail, and no event will come. If the cache still has the Service, its deletion is handled later.
func (r *Registrar) releaseDeleted(ctx context.Context, svc *v1.Service) error {
	if r.inCache(svc) {
		return nil
	}
	return r.ledger.Release(ctx, servicerecord.KeyOf(svc), svc.UID)
}

// unconfirmed returns the Services that hold something by their record and that are not in the cache. They were listed
// at the start, and may have been created and deleted without an event in the cache.
func (r *Registrar) unconfirmed(listed []v1.Service) (out []*v1.Service) {
	for i := range listed {
		if svc := &listed[i]; r.ledger.hasEntry(svc) && !r.inCache(svc) {
			out = append(out, svc)
		}
	}
	return out
}

// releaseUnconfirmed queries the API server for the Services that are not in the cache, releases the deleted ones, and
// returns the others for another check.
func (r *Registrar) releaseUnconfirmed(ctx context.Context, unconfirmed []*v1.Service) (left []*v1.Service) {
	for _, svc := range unconfirmed {
		if r.inCache(svc) {
			continue
		}
		now, err := servicerecord.Read(ctx, r.api, svc)
		if err != nil || now != nil {
			left = append(left, svc)
			continue
		}
		r.Log.Info("released a Service that was deleted during the start", "service", servicerecord.KeyOf(svc))
		_ = r.ledger.Release(ctx, servicerecord.KeyOf(svc), svc.UID) // fails only while it waits for adopted addresses
	}
	return left
}
