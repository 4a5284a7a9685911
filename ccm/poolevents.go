package ccm

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// publish writes an Event about a pool that is not in use as specified, once per cause: the condition lets the next
// leader skip a reported one.
func (p *poolStatus) publish(obj *v1alpha1.IPAddressPool, want v1alpha1.IPAddressPoolStatus) {
	ready := meta.FindStatusCondition(want.Conditions, conditionReady)
	if ready == nil || ready.Status != metav1.ConditionFalse {
		delete(p.published, obj.UID)
		return
	}
	before := p.published[obj.UID]
	had := meta.FindStatusCondition(obj.Status.Conditions, conditionReady)
	if had != nil && had.Status == metav1.ConditionFalse {
		before = had.Message
	}
	if p.published[obj.UID] = ready.Message; before != ready.Message {
		p.events.Event(obj, v1.EventTypeWarning, ready.Reason, ready.Message)
	}
}
