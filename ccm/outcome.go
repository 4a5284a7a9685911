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

// outcome is what we write on a Service, all of it in one patch of the status subresource: there is no moment at which the
// object has one part without the others.
type outcome struct {
	from string // the annotation, for people; empty: none
	// record is the message of v1alpha1.ConditionAddresses; empty: none.
	record  string
	ingress []v1.LoadBalancerIngress
	others  bool // the addresses are another controller's, and left as they are
	// condition has no type when there is none.
	condition metav1.Condition
	// finalizer is ours on the Service, if it is there. It comes with the outcome: no object shows an address without it.
	finalizer string
	// reallocated is the value of annotation ironlb.io/reallocate that was carried out; empty: none.
	reallocated string
}

// finalizerOf is what keeps the Service until it is cleaned up: the service controller's without a class, else our own.
func finalizerOf(svc *v1.Service) string {
	if svc.Spec.LoadBalancerClass == nil {
		return servicehelper.LoadBalancerCleanupFinalizer
	}
	return finalizer
}

// outcomeOf says what came of a Service. The same decision gives the same record. The message names all that it holds.
func (s *Settings) outcomeOf(svc *v1.Service, lease []pools.Address, reason pools.Reason, message string) outcome {
	r := outcome{from: allocatedFrom(lease), record: recordOf(lease), finalizer: finalizerOf(svc), condition: metav1.Condition{
		Type: conditionAllocated, Status: metav1.ConditionFalse, Reason: string(reason), Message: message,
	}}
	if !reason.Warning() || reason == pools.Draining {
		r.condition.Status = metav1.ConditionTrue
	}
	switch {
	case message == "":
		r.condition.Message = "The Service holds " + described(lease) + notAsked(svc, lease)
	case len(lease) > 1 || len(lease) > 0 && reason != pools.Draining: // whose message names one
		r.condition.Message += ". The Service holds " + described(lease)
	}
	mode := v1.LoadBalancerIPMode(s.IPMode)
	for _, a := range lease {
		r.ingress = append(r.ingress, v1.LoadBalancerIngress{IP: a.Addr.String(), IPMode: &mode})
	}
	return r
}

// notAsked names the family of a dual-stack Service of which its request names no address, though it names one of the
// other. Empty: there is none.
func notAsked(svc *v1.Service, lease []pools.Address) string {
	var bad []string
	asked := askedAddresses(svc, &bad)
	if len(asked) != 1 || len(lease) != 2 {
		return ""
	}
	other := pools.IPv4
	if pools.FamilyOf(asked[0]) == pools.IPv4 {
		other = pools.IPv6
	}
	return fmt.Sprintf(". Its request names no %s address, so any was chosen: name both in annotation %s to keep it",
		other, v1alpha1.AnnotationAddresses)
}

// outcomeIn reads what the Service has.
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

// sameOutcome does not look at times.
func (r outcome) sameOutcome(o outcome) bool {
	a, b := r.condition, o.condition
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// patchOf returns the strategic merge patch that makes the Service, in the version that is given, say what the outcome
// says, whatever it says now. have gives the time since when the condition holds. dropped are finalizers to take away.
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
		"uid":         svc.UID, // not to a Service of the same name that came after
		"annotations": map[string]*string{v1alpha1.AnnotationAllocatedFrom: annotation},
	}
	if svc.ResourceVersion != "" { // not to what it has become since: that may want the opposite
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

// described lists the addresses with their pools, for people.
func described(lease []pools.Address) string {
	if len(lease) == 0 {
		return "nothing"
	}
	texts := make([]string, len(lease))
	for i, a := range lease {
		texts[i] = fmt.Sprintf("%s of pool %s", a.Addr, a.Pool)
		if a.Pool == "" {
			texts[i] = a.Addr.String() + " of no pool"
		}
	}
	return strings.Join(texts, " and ")
}

// recordedFor returns the pool that the record of a Service has for an address, and whether it has the address. The
// annotation alone does not count: the author of the Service may have written it.
func recordedFor(svc *v1.Service, a netip.Addr) (pool string, ok bool) {
	records, _ := v1alpha1.RecordsOf(svc)
	return v1alpha1.PoolOf(records, a)
}

// recordOf is the record of the lease.
func recordOf(lease []pools.Address) string {
	records := make([]v1alpha1.Record, len(lease))
	for i, a := range lease {
		records[i] = v1alpha1.Record{Addr: a.Addr, Pool: a.Pool}
	}
	return v1alpha1.FormatRecords(records)
}

// allocatedFrom is the value of the annotation that records the pools of the lease.
func allocatedFrom(lease []pools.Address) string {
	names := make([]string, len(lease))
	for i, a := range lease {
		names[i] = a.Pool
	}
	return strings.Join(names, ",")
}

// has says whether the Service has the finalizer.
func has(svc *v1.Service, finalizer string) bool { return slices.Contains(svc.Finalizers, finalizer) }
