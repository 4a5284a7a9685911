package servicerecord

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const ConditionAllocated = v1alpha1.ConditionAllocated

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
