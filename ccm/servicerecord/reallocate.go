package servicerecord

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools"
)

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
