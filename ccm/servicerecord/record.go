// Package servicerecord translates between a Service object and the allocator of addresses.
//
// Scope decides which Services IronLB serves. ClaimOf reads from a Service what it requests, by annotations and fields,
// and what it holds by IronLB's record. Outcome is what IronLB writes in return, always in one patch of the status:
// ingress, record, annotation, condition and finalizer. The record is the message of a condition, which the author of a
// Service cannot write; the annotation is for users and is never read as a record. A patch names the version of the
// object that was decided about, so that the API server refuses it after any other change: see RetryOnConflict.
//
// The package keeps no state.
package servicerecord

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	servicehelper "k8s.io/cloud-provider/service/helpers"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Outcome is what the CCM writes on a Service, in one patch of the status subresource: the object never has only some
// of the parts.
type Outcome struct {
	From string // the annotation, for users; empty: none
	// Record is the message of v1alpha1.ConditionAddresses; empty: none.
	Record  string
	Ingress []v1.LoadBalancerIngress
	Others  bool // the addresses belong to another controller and stay unchanged
	// Condition has no type if there is none.
	Condition metav1.Condition
	// Finalizer is IronLB's finalizer on the Service, if present. It is written with the outcome: no object shows an
	// address without it.
	Finalizer string
	// Reallocated is the value of annotation ironlb.io/reallocate that was carried out; empty: none.
	Reallocated string
}

// Described lists the addresses with their pools, for users.
func Described(lease []pools.Address) string {
	if len(lease) == 0 {
		return "nothing"
	}
	texts := make([]string, len(lease))
	for i, a := range lease {
		texts[i] = fmt.Sprintf("%s from pool %s", a.Addr, a.Pool)
		if a.Pool == "" {
			texts[i] = a.Addr.String() + " from no pool"
		}
	}
	return strings.Join(texts, " and ")
}

// RecordedFor returns the pool in the Service's record for an address, and whether the record has the address. The
// annotation alone does not count: the author of the Service may have written it.
func RecordedFor(svc *v1.Service, a netip.Addr) (pool string, ok bool) {
	records, _ := v1alpha1.RecordsOf(svc)
	return v1alpha1.PoolOf(records, a)
}

// RecordOf returns the record of the lease.
func RecordOf(lease []pools.Address) string {
	records := make([]v1alpha1.Record, len(lease))
	for i, a := range lease {
		records[i] = v1alpha1.Record{Addr: a.Addr, Pool: a.Pool}
	}
	return v1alpha1.FormatRecords(records)
}

// AllocatedFrom returns the value of the annotation that records the pools of the lease.
func AllocatedFrom(lease []pools.Address) string {
	names := make([]string, len(lease))
	for i, a := range lease {
		names[i] = a.Pool
	}
	return strings.Join(names, ",")
}

// Unrecorded reports whether the Service shows an ingress without IronLB's record of it.
func Unrecorded(svc *v1.Service) bool {
	have := OutcomeIn(svc)
	return len(have.Ingress) > 0 && !Recorded(svc)
}

// IngressOf lists the addresses in the Service's status.
func IngressOf(svc *v1.Service) []netip.Addr {
	var out []netip.Addr
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// Recorded reports whether the Service has a record of IronLB, which its author cannot write.
func Recorded(svc *v1.Service) bool {
	have := OutcomeIn(svc)
	return have.Record != "" || have.Condition.Type != ""
}

// UnchangedClaim is the claim of a Service that must not change, whatever it requests: a move would never be written.
func UnchangedClaim(c pools.Claim, lease []pools.Address) pools.Claim {
	c.Families, c.Policy, c.Addresses = nil, pools.RequireDualStack, nil
	for _, h := range lease {
		c.Families, c.Addresses = append(c.Families, pools.FamilyOf(h.Addr)), append(c.Addresses, h.Addr)
	}
	c.Pool, c.Invalid, c.Reallocate = "", "", false
	return c
}

// IPs lists the addresses of a status.
func IPs(ingress []v1.LoadBalancerIngress) []string {
	var out []string
	for _, in := range ingress {
		out = append(out, in.IP)
	}
	return out
}

// FinalizersOn lists the finalizers to remove from the Service: IronLB's own and, if shared, the service controller's.
// The latter is included if that controller does not run (onlyClass) and the Service has IronLB's record.
func FinalizersOn(svc *v1.Service, onlyClass, shared bool) []string {
	var on []string
	if HasFinalizer(svc, Finalizer) {
		on = append(on, Finalizer)
	}
	if shared && onlyClass && Recorded(svc) && servicehelper.HasLBFinalizer(svc) {
		on = append(on, servicehelper.LoadBalancerCleanupFinalizer)
	}
	return on
}

const ConditionAllocated = v1alpha1.ConditionAllocated

// OutcomeOf returns the outcome for a Service. The same decision gives the same record. The message names all addresses
// that the Service holds.
func (s *Scope) OutcomeOf(svc *v1.Service, lease []pools.Address, reason pools.Reason, message string) Outcome {
	r := Outcome{From: AllocatedFrom(lease), Record: RecordOf(lease), Condition: metav1.Condition{
		Type: ConditionAllocated, Status: metav1.ConditionFalse, Reason: string(reason), Message: message,
	}}
	if !reason.Warning() || reason == pools.Draining {
		r.Condition.Status = metav1.ConditionTrue
	}
	if f := FinalizerOf(svc); len(lease) > 0 || HasFinalizer(svc, f) { // while it waits there is nothing to clean up
		r.Finalizer = f
	}
	switch {
	case message == "":
		r.Condition.Message = "Allocated " + Described(lease) + unrequestedFamily(svc, lease)
	case len(lease) > 1 || len(lease) > 0 && reason != pools.Draining: // the message of Draining already names one
		r.Condition.Message += ". The Service holds " + Described(lease)
	}
	mode := v1.LoadBalancerIPMode(s.IPMode)
	for _, a := range lease {
		r.Ingress = append(r.Ingress, v1.LoadBalancerIngress{IP: a.Addr.String(), IPMode: &mode})
	}
	return r
}

// unrequestedFamily names the family that a dual-stack Service does not request an address of, if it requests one of
// the other family. Empty: there is none.
func unrequestedFamily(svc *v1.Service, lease []pools.Address) string {
	var bad []string
	requested := requestedAddresses(svc, &bad)
	if len(requested) != 1 || len(lease) != 2 {
		return ""
	}
	other := pools.IPv4
	if pools.FamilyOf(requested[0]) == pools.IPv4 {
		other = pools.IPv6
	}
	return fmt.Sprintf(". Its request names no %s address, so any was chosen: name both in annotation %s to keep it",
		other, v1alpha1.AnnotationAddresses)
}

// OutcomeIn reads the outcome on the Service.
func OutcomeIn(svc *v1.Service) Outcome {
	r := Outcome{From: svc.Annotations[v1alpha1.AnnotationAllocatedFrom], Ingress: svc.Status.LoadBalancer.Ingress}
	if c := meta.FindStatusCondition(svc.Status.Conditions, ConditionAllocated); c != nil {
		r.Condition = *c
	}
	if c := meta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionAddresses); c != nil {
		r.Record = c.Message
	}
	if f := FinalizerOf(svc); HasFinalizer(svc, f) {
		r.Finalizer = f
	}
	r.Reallocated = reallocationIn(svc)
	return r
}

func (r Outcome) Equal(o Outcome) bool {
	return r.From == o.From && r.Record == o.Record && r.Finalizer == o.Finalizer && r.Reallocated == o.Reallocated &&
		r.SameIngress(o) && r.SameOutcome(o)
}

func (r Outcome) SameIngress(o Outcome) bool {
	return r.Others || o.Others || equality.Semantic.DeepEqual(r.Ingress, o.Ingress)
}

// SameOutcome ignores times.
func (r Outcome) SameOutcome(o Outcome) bool {
	a, b := r.Condition, o.Condition
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// PatchOf returns the strategic merge patch that applies the outcome to the Service in the given version, whatever it
// has now. have gives the transition time of the condition. dropped are finalizers to remove.
func (r Outcome) PatchOf(svc *v1.Service, have Outcome, dropped ...string) ([]byte, error) {
	annotation := &r.From
	if r.From == "" {
		annotation = nil
	}
	condition := any(map[string]string{"$patch": "delete", "type": ConditionAllocated})
	if r.Condition.Type != "" {
		r.Condition.LastTransitionTime = metav1.Now()
		if have.Condition.Status == r.Condition.Status && !have.Condition.LastTransitionTime.IsZero() {
			r.Condition.LastTransitionTime = have.Condition.LastTransitionTime
		}
		condition = r.Condition
	}
	metadata := map[string]any{
		"uid":         svc.UID, // not to a later Service of the same name
		"annotations": map[string]*string{v1alpha1.AnnotationAllocatedFrom: annotation},
	}
	if svc.ResourceVersion != "" { // not to a later version: that may require the opposite
		metadata["resourceVersion"] = svc.ResourceVersion
	}
	if r.Finalizer != "" && r.Finalizer != have.Finalizer {
		metadata["finalizers"] = []string{r.Finalizer}
	}
	if len(dropped) > 0 {
		metadata["$deleteFromPrimitiveList/finalizers"] = dropped
	}
	record := any(map[string]string{"$patch": "delete", "type": v1alpha1.ConditionAddresses})
	if r.Record != "" {
		record = metav1.Condition{Type: v1alpha1.ConditionAddresses, Status: metav1.ConditionTrue, Reason: "Recorded",
			Message: r.Record, LastTransitionTime: metav1.Now()}
	}
	conditions := []any{condition, record}
	if c := reallocationPatch(svc, r.Reallocated); c != nil {
		conditions = append(conditions, c)
	}
	status := map[string]any{"conditions": conditions}
	if !r.Others {
		status["loadBalancer"] = map[string]any{"ingress": r.Ingress}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "status": status})
	if err != nil {
		return nil, fmt.Errorf("encoding the outcome of Service %s: %w", KeyOf(svc), err)
	}
	return patch, nil
}

// Reallocation returns the value that the Service's status should record: that of the annotation, if it was carried out
// by this decision or before.
func Reallocation(svc *v1.Service, have Outcome, carriedOut bool) string {
	if requested := RequestedReallocation(svc); carriedOut || requested == have.Reallocated {
		return requested
	}
	return ""
}

// Finalizer keeps a Service of IronLB's class until its address is withdrawn. The service controller uses another
// Finalizer.
const Finalizer = "ironlb.io/load-balancer"

// FinalizerOf returns the finalizer that keeps the Service until it is cleaned up: the service controller's without a
// class, else IronLB's own.
func FinalizerOf(svc *v1.Service) string {
	if svc.Spec.LoadBalancerClass == nil {
		return servicehelper.LoadBalancerCleanupFinalizer
	}
	return Finalizer
}

// HasFinalizer reports whether the Service has the finalizer.
func HasFinalizer(svc *v1.Service, finalizer string) bool {
	return slices.Contains(svc.Finalizers, finalizer)
}

// conditionReallocated of a Service records in its message which value of the annotation ironlb.io/reallocate was
// carried out. It is written with the new address. Another value is another request. The record is deleted with the
// annotation.
const conditionReallocated = "ironlb.io/Reallocated"

// RequestedReallocation returns the value of the annotation as recorded: at most 64 bytes. Empty, or "false": none.
func RequestedReallocation(svc *v1.Service) string {
	value := strings.TrimSpace(svc.Annotations[AnnotationReallocate])
	switch {
	case strings.EqualFold(value, "false"):
		return ""
	case len(value) > 64:
		sum := sha256.Sum256([]byte(value))
		return hex.EncodeToString(sum[:])
	}
	return value
}

// reallocationIn returns the value that the Service's status records.
func reallocationIn(svc *v1.Service) string {
	if c := meta.FindStatusCondition(svc.Status.Conditions, conditionReallocated); c != nil {
		return c.Message
	}
	return ""
}

// RequestReallocation adds the request to the claim, if it is a new one.
func RequestReallocation(c *pools.Claim, requested, done string) {
	c.Reallocate, c.ReallocateDone = requested != "" && requested != done, ""
	if requested == done {
		c.ReallocateDone = done
	}
}

// reallocationPatch returns the entry of the conditions that records the value. Nil: nothing to change.
func reallocationPatch(svc *v1.Service, value string) any {
	switch {
	case value == reallocationIn(svc):
		return nil
	case value == "":
		return map[string]string{"$patch": "delete", "type": conditionReallocated}
	}
	return metav1.Condition{
		Type: conditionReallocated, Status: metav1.ConditionTrue, Reason: "Reallocated", Message: value,
		LastTransitionTime: metav1.Now(),
	}
}

// conflictTries is the maximum number of decisions about a Service before the conflict is an error. Each needs another
// change of the Service in the few milliseconds between a read and a write.
const conflictTries = 5

// RetryOnConflict calls decide with the Service, and after a conflict with the current Service. exists is false if it
// no longer exists.
func RetryOnConflict(
	ctx context.Context, api corev1.ServicesGetter, svc *v1.Service, decide func(*v1.Service) error,
) (exists bool, err error) {
	for range conflictTries {
		if err = decide(svc); !apierrors.IsConflict(err) {
			return true, err
		}
		now, failed := Read(ctx, api, svc)
		if failed != nil || now == nil {
			return failed != nil, failed
		}
		svc = now
	}
	return true, err
}

// Read returns the Service from the API server, nil if it is deleted. It uses a list, for which the controllers
// have the permission anyway.
func Read(ctx context.Context, api corev1.ServicesGetter, svc *v1.Service) (*v1.Service, error) {
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, svc.Name).String()}
	list, err := api.Services(svc.Namespace).List(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("reading Service %s: %w", KeyOf(svc), err)
	}
	for i := range list.Items {
		if s := &list.Items[i]; s.Name == svc.Name && s.UID == svc.UID {
			v1alpha1.LimitService(s)
			return s, nil
		}
	}
	return nil, nil
}

// OlderVersion reports whether the first version of an object came before the second one.
func OlderVersion(version, than string) bool {
	c, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && c < 0
}

// Gone reports whether the Service does not exist any more, or is being deleted. If there is another one of the same
// name, the API server treats the UID in the patch as an attempt to change its UID. A Service in deletion accepts no
// new finalizer.
func Gone(err error) bool {
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
