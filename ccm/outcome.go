package ccm

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servicehelper "k8s.io/cloud-provider/service/helpers"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const conditionAllocated = v1alpha1.ConditionAllocated

// outcome is what the CCM writes on a Service, in one patch of the status subresource: the object never has only some
// of the parts.
type outcome struct {
	from string // the annotation, for users; empty: none
	// record is the message of v1alpha1.ConditionAddresses; empty: none.
	record  string
	ingress []v1.LoadBalancerIngress
	others  bool // the addresses belong to another controller and stay unchanged
	// condition has no type if there is none.
	condition metav1.Condition
	// finalizer is IronLB's finalizer on the Service, if present. It is written with the outcome: no object shows an
	// address without it.
	finalizer string
	// reallocated is the value of annotation ironlb.io/reallocate that was carried out; empty: none.
	reallocated string
}

// finalizerOf returns the finalizer that keeps the Service until it is cleaned up: the service controller's without a
// class, else IronLB's own.
func finalizerOf(svc *v1.Service) string {
	if svc.Spec.LoadBalancerClass == nil {
		return servicehelper.LoadBalancerCleanupFinalizer
	}
	return finalizer
}

// outcomeOf returns the outcome for a Service. The same decision gives the same record. The message names all addresses
// that the Service holds.
func (s *Settings) outcomeOf(svc *v1.Service, lease []pools.Address, reason pools.Reason, message string) outcome {
	r := outcome{from: allocatedFrom(lease), record: recordOf(lease), finalizer: finalizerOf(svc), condition: metav1.Condition{
		Type: conditionAllocated, Status: metav1.ConditionFalse, Reason: string(reason), Message: message,
	}}
	if !reason.Warning() || reason == pools.Draining {
		r.condition.Status = metav1.ConditionTrue
	}
	switch {
	case message == "":
		r.condition.Message = "Allocated " + described(lease) + unrequestedFamily(svc, lease)
	case len(lease) > 1 || len(lease) > 0 && reason != pools.Draining: // the message of Draining already names one
		r.condition.Message += ". The Service holds " + described(lease)
	}
	mode := v1.LoadBalancerIPMode(s.IPMode)
	for _, a := range lease {
		r.ingress = append(r.ingress, v1.LoadBalancerIngress{IP: a.Addr.String(), IPMode: &mode})
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

// outcomeIn reads the outcome on the Service.
func outcomeIn(svc *v1.Service) outcome {
	r := outcome{from: svc.Annotations[v1alpha1.AnnotationAllocatedFrom], ingress: svc.Status.LoadBalancer.Ingress}
	if c := meta.FindStatusCondition(svc.Status.Conditions, conditionAllocated); c != nil {
		r.condition = *c
	}
	if c := meta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionAddresses); c != nil {
		r.record = c.Message
	}
	if f := finalizerOf(svc); has(svc, f) {
		r.finalizer = f
	}
	r.reallocated = reallocationIn(svc)
	return r
}

func (r outcome) equal(o outcome) bool {
	return r.from == o.from && r.record == o.record && r.finalizer == o.finalizer && r.reallocated == o.reallocated &&
		r.sameIngress(o) && r.sameOutcome(o)
}

func (r outcome) sameIngress(o outcome) bool {
	return r.others || o.others || equality.Semantic.DeepEqual(r.ingress, o.ingress)
}

// sameOutcome ignores times.
func (r outcome) sameOutcome(o outcome) bool {
	a, b := r.condition, o.condition
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// patchOf returns the strategic merge patch that applies the outcome to the Service in the given version, whatever it
// has now. have gives the transition time of the condition. dropped are finalizers to remove.
func (r outcome) patchOf(svc *v1.Service, have outcome, dropped ...string) ([]byte, error) {
	annotation := &r.from
	if r.from == "" {
		annotation = nil
	}
	condition := any(map[string]string{"$patch": "delete", "type": conditionAllocated})
	if r.condition.Type != "" {
		r.condition.LastTransitionTime = metav1.Now()
		if have.condition.Status == r.condition.Status && !have.condition.LastTransitionTime.IsZero() {
			r.condition.LastTransitionTime = have.condition.LastTransitionTime
		}
		condition = r.condition
	}
	metadata := map[string]any{
		"uid":         svc.UID, // not to a later Service of the same name
		"annotations": map[string]*string{v1alpha1.AnnotationAllocatedFrom: annotation},
	}
	if svc.ResourceVersion != "" { // not to a later version: that may require the opposite
		metadata["resourceVersion"] = svc.ResourceVersion
	}
	if r.finalizer != "" && r.finalizer != have.finalizer {
		metadata["finalizers"] = []string{r.finalizer}
	}
	if len(dropped) > 0 {
		metadata["$deleteFromPrimitiveList/finalizers"] = dropped
	}
	record := any(map[string]string{"$patch": "delete", "type": v1alpha1.ConditionAddresses})
	if r.record != "" {
		record = metav1.Condition{Type: v1alpha1.ConditionAddresses, Status: metav1.ConditionTrue, Reason: "Recorded",
			Message: r.record, LastTransitionTime: metav1.Now()}
	}
	conditions := []any{condition, record}
	if c := reallocationPatch(svc, r.reallocated); c != nil {
		conditions = append(conditions, c)
	}
	status := map[string]any{"conditions": conditions}
	if !r.others {
		status["loadBalancer"] = map[string]any{"ingress": r.ingress}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "status": status})
	if err != nil {
		return nil, fmt.Errorf("encoding the outcome of Service %s: %w", keyOf(svc), err)
	}
	return patch, nil
}

// described lists the addresses with their pools, for users.
func described(lease []pools.Address) string {
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

// recordedFor returns the pool in the Service's record for an address, and whether the record has the address. The
// annotation alone does not count: the author of the Service may have written it.
func recordedFor(svc *v1.Service, a netip.Addr) (pool string, ok bool) {
	records, _ := v1alpha1.RecordsOf(svc)
	return v1alpha1.PoolOf(records, a)
}

// recordOf returns the record of the lease.
func recordOf(lease []pools.Address) string {
	records := make([]v1alpha1.Record, len(lease))
	for i, a := range lease {
		records[i] = v1alpha1.Record{Addr: a.Addr, Pool: a.Pool}
	}
	return v1alpha1.FormatRecords(records)
}

// allocatedFrom returns the value of the annotation that records the pools of the lease.
func allocatedFrom(lease []pools.Address) string {
	names := make([]string, len(lease))
	for i, a := range lease {
		names[i] = a.Pool
	}
	return strings.Join(names, ",")
}

// has reports whether the Service has the finalizer.
func has(svc *v1.Service, finalizer string) bool { return slices.Contains(svc.Finalizers, finalizer) }
