package ccm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/ironlb/ironlb/pools"
)

// registrar assigns addresses to Services and writes them, for the service controller and for the class controller. One
// controller never calls it for the same Service concurrently; both may, when a Service passes from one to the other.
type registrar struct {
	log      *slog.Logger
	events   record.EventRecorder
	settings *Settings
	ledger   *ledger
	api      corev1.ServicesGetter
	services corelisters.ServiceLister // of the cache; may be nil
}

// serve assigns what the Service requests, writes the outcome if the object does not have it, and publishes it if it is
// new. As with end, the error is a conflict if the Service has changed since: see retryOnConflict.
func (r *registrar) serve(ctx context.Context, svc *v1.Service) error {
	if err := r.ledger.waitReady(ctx); err != nil {
		return fmt.Errorf("serving Service %s: %w", keyOf(svc), err)
	}
	if r.ledger.foreign(svc) {
		return nil
	}
	start := time.Now()
	d, err := r.ledger.assign(ctx, svc)
	if err != nil {
		return err
	}
	want := r.settings.outcomeOf(svc, d.Lease, d.Reason, d.Message)
	have, sure := r.ledger.newest(svc)
	want.reallocated = reallocation(svc, have, d.Reallocated)
	if sure && have.equal(want) {
		r.ledger.written(svc, d.Lease, want, nil)
		r.ledger.setPublished(svc, have, want)
		return r.releaseDeleted(ctx, svc)
	}
	patch, err := want.patchOf(svc, have)
	if err != nil {
		return err
	}
	after, err := r.patch(ctx, svc, have, patch)
	if gone(err) {
		return r.ledger.release(ctx, keyOf(svc), svc.UID) // its deletion may have been handled before the assignment
	}
	if err != nil {
		return fmt.Errorf("writing the address of Service %s: %w", keyOf(svc), err)
	}
	r.ledger.written(svc, d.Lease, want, after)
	if len(want.ingress) > 0 && !have.sameIngress(want) {
		measureAssignment(time.Since(start))
	}
	if have.from != want.from || !have.sameIngress(want) {
		r.log.Info("lease changed", "service", keyOf(svc), "holds", described(d.Lease), "before", ips(have.ingress),
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
func (r *registrar) publish(svc *v1.Service, have, want outcome, d pools.Decision) {
	before, warning := r.ledger.setPublished(svc, have, want), d.Reason.Warning()
	if before.sameOutcome(want) || !warning && before.condition.Type == "" && len(before.ingress) > 0 && before.sameIngress(want) {
		return
	}
	kind, reason, message := v1.EventTypeNormal, want.condition.Reason, want.condition.Message
	if len(d.Moves) > 0 {
		reason, message = addressChanged, changed(d.Moves)+". "+message
	}
	if warning {
		kind, reason = v1.EventTypeWarning, want.condition.Reason
		r.log.Warn("request not met", "service", keyOf(svc), "reason", want.condition.Reason, "message", want.condition.Message)
	}
	r.events.Event(svc, kind, reason, message)
}

// settled reports whether the Service is as it should be, so that nothing is left to do. The call may assign an address
// that is written later.
func (r *registrar) settled(ctx context.Context, svc *v1.Service) bool {
	d, ok, err := r.ledger.assignIdle(ctx, svc)
	if err != nil || !ok {
		return false
	}
	want := r.settings.outcomeOf(svc, d.Lease, d.Reason, d.Message)
	have, sure := r.ledger.newest(svc)
	want.reallocated = reallocation(svc, have, d.Reallocated)
	if !sure || !have.equal(want) {
		return false
	}
	r.ledger.written(svc, d.Lease, want, nil)
	r.ledger.setPublished(svc, have, want)
	return r.releaseDeleted(ctx, svc) == nil
}

// diverged reports whether another writer changed what IronLB wrote.
func (r *registrar) diverged(svc *v1.Service) bool {
	want, ok := r.ledger.current(svc)
	if !ok || !r.settings.wants(svc) {
		return false
	}
	have, _ := r.ledger.newest(svc)
	want.reallocated = reallocation(svc, have, false)
	return !have.equal(want)
}

// unmet reports whether the Service is managed and does not have all that it requests.
func (r *registrar) unmet(svc *v1.Service) bool {
	return r.settings.wants(svc) && !r.ledger.foreign(svc) && outcomeIn(svc).condition.Reason != string(pools.Allocated)
}

// clear removes IronLB's record and the finalizers from a Service that is not managed any more. It frees what the
// Service held only after that, so that the addresses are no longer visible there. If the Service became managed again
// meanwhile, also through the other controller, its new addresses stay.
func (r *registrar) clear(ctx context.Context, svc *v1.Service, finalizers ...string) error {
	return r.end(ctx, svc, outcome{}, finalizers)
}

// end reduces the Service to the outcome left, removes the finalizers, and frees what it held.
func (r *registrar) end(ctx context.Context, svc *v1.Service, left outcome, finalizers []string) error {
	decision := r.ledger.decision(svc)
	have, sure := r.ledger.newest(svc)
	have.finalizer = ""
	if !sure || !have.equal(left) || len(finalizers) > 0 {
		patch, err := left.patchOf(svc, have, finalizers...)
		if err != nil {
			return err
		}
		if _, err := r.patch(ctx, svc, have, patch); err != nil && !gone(err) {
			return fmt.Errorf("clearing the address of Service %s: %w", keyOf(svc), err)
		}
	}
	return r.ledger.releaseUnchanged(ctx, svc, decision)
}

// patch writes to the Service if its version is still the one decided about: otherwise the error is a conflict. have is
// the outcome before the write.
func (r *registrar) patch(ctx context.Context, svc *v1.Service, have outcome, patch []byte) (*v1.Service, error) {
	after, err := r.api.Services(svc.Namespace).Patch(ctx, svc.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case err == nil || gone(err):
		return after, err
	case apierrors.IsConflict(err):
		r.ledger.refused(svc)
	default:
		r.ledger.failed(svc, have)
	}
	r.ledger.declined(keyOf(svc))
	return after, err
}

// gone reports whether the Service does not exist any more, or is being deleted. If there is another one of the same
// name, the API server treats the UID in the patch as an attempt to change its UID. A Service in deletion accepts no
// new finalizer.
func gone(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsInvalid(err) && slices.ContainsFunc(causes(err), func(c metav1.StatusCause) bool {
		return c.Field == "metadata.uid" || c.Field == "metadata.finalizers" && c.Type == metav1.CauseType(field.ErrorTypeForbidden)
	})
}

func causes(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

// ips lists the addresses of a status.
func ips(ingress []v1.LoadBalancerIngress) []string {
	var out []string
	for _, in := range ingress {
		out = append(out, in.IP)
	}
	return out
}
