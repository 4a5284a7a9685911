package allocation

import (
	"context"
	"fmt"
	"log/slog"
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
	switch {
	case err == nil || servicerecord.Gone(err):
		return after, err
	case apierrors.IsConflict(err):
		r.ledger.refused(svc)
	default:
		r.ledger.failed(svc, have)
	}
	return after, err
}
