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

// registrar gives Services their addresses and writes them down: for the service controller and for the class controller.
// A controller never calls it for one Service twice at a time; two may, when a Service goes from one to the other.
type registrar struct {
	log      *slog.Logger
	events   record.EventRecorder
	settings *Settings
	ledger   *ledger
	api      corev1.ServicesGetter
	services corelisters.ServiceLister // of the cache; nil: none
}

// serve gives the Service what it asks for, writes the outcome on the object if it is not there, and says it if it is new.
// The error is a conflict if the Service has changed since: see retryOnConflict. So it is with end.
func (r *registrar) serve(ctx context.Context, svc *v1.Service) error {
	if err := r.ledger.waitReady(ctx); err != nil {
		return fmt.Errorf("serving Service %s: %w", keyOf(svc), err)
	}
	if r.ledger.theirs(svc) {
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
		r.ledger.tell(svc, have, want)
		return r.releaseDeleted(ctx, svc)
	}
	patch, err := want.patchOf(svc, have)
	if err != nil {
		return err
	}
	after, err := r.patch(ctx, svc, have, patch)
	if gone(err) {
		return r.ledger.release(ctx, keyOf(svc), svc.UID) // its end may have been seen before it was assigned anything
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
	r.tell(svc, have, want, d)
	return nil
}

// changed says which addresses are others than before, and why. Empty: none is.
func changed(moves []pools.Move) string {
	texts := make([]string, len(moves))
	for i, m := range moves {
		texts[i] = fmt.Sprintf("The address changed from %s to %s: %s", m.From, m.To, m.Why)
	}
	return strings.Join(texts, ". ")
}

// addressChanged is the reason of the Event of a change of address.
const addressChanged = "AddressChanged"

// tell says a change of outcome, once. An object that had the same addresses before there was a condition is no news.
func (r *registrar) tell(svc *v1.Service, have, want outcome, d pools.Decision) {
	before, warning := r.ledger.tell(svc, have, want), d.Reason.Warning()
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

// settled says whether the Service has what it should have: nothing is left to do for it. It may get its address by this,
// to be written later.
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
	r.ledger.tell(svc, have, want)
	return r.releaseDeleted(ctx, svc) == nil
}

// drifted says whether somebody changed what we wrote.
func (r *registrar) drifted(svc *v1.Service) bool {
	want, ok := r.ledger.current(svc)
	if !ok || !r.settings.wants(svc) {
		return false
	}
	have, _ := r.ledger.newest(svc)
	want.reallocated = reallocation(svc, have, false)
	return !have.equal(want)
}

// unmet says whether the Service is ours and has not all that it asks for.
func (r *registrar) unmet(svc *v1.Service) bool {
	return r.settings.wants(svc) && !r.ledger.theirs(svc) && outcomeIn(svc).condition.Reason != string(pools.Allocated)
}

// clear takes our record and the finalizers off a Service that is not ours any more, and then frees what it held: not
// before nobody can read it there. If it became ours again meanwhile, be it through the other controller, what it was given
// stays.
func (r *registrar) clear(ctx context.Context, svc *v1.Service, finalizers ...string) error {
	return r.end(ctx, svc, outcome{}, finalizers)
}

// end makes the Service say what remains of the outcome, takes the finalizers off, and frees what it held.
func (r *registrar) end(ctx context.Context, svc *v1.Service, rest outcome, finalizers []string) error {
	turn := r.ledger.turn(svc)
	have, sure := r.ledger.newest(svc)
	have.finalizer = ""
	if !sure || !have.equal(rest) || len(finalizers) > 0 {
		patch, err := rest.patchOf(svc, have, finalizers...)
		if err != nil {
			return err
		}
		if _, err := r.patch(ctx, svc, have, patch); err != nil && !gone(err) {
			return fmt.Errorf("clearing the address of Service %s: %w", keyOf(svc), err)
		}
	}
	return r.ledger.releaseUnchanged(ctx, svc, turn)
}

// patch writes to the Service, if it is still of the version that was decided about: else the error is a conflict. have
// is what it had before.
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

// gone says whether the Service does not exist any more, or not for long: there may be another one of the same name, and the
// API server takes its UID in our patch for an attempt to change the UID of the other; and one that is being deleted takes
// no new finalizer.
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
