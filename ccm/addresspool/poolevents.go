package addresspool

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// publish writes an Event about a pool that is not in use as specified, once per cause: the condition lets the next
// leader skip a reported one.
func (p *Status) publish(obj *v1alpha1.IPAddressPool, want v1alpha1.IPAddressPoolStatus) {
	ready := meta.FindStatusCondition(want.Conditions, condition.Ready)
	if ready == nil || ready.Status != metav1.ConditionFalse {
		delete(p.Published, obj.UID)
		return
	}
	before := p.Published[obj.UID]
	had := meta.FindStatusCondition(obj.Status.Conditions, condition.Ready)
	if had != nil && had.Status == metav1.ConditionFalse {
		before = had.Message
	}
	if p.Published[obj.UID] = ready.Message; before != ready.Message {
		p.Events.Event(obj, v1.EventTypeWarning, ready.Reason, ready.Message)
	}
}
