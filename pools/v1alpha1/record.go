package v1alpha1

import (
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionAddresses of a Service records which addresses the controller gave it, and out of which pools. Its message is for programs:
// ADDRESS=POOL, separated by commas, in the order of the addresses, with no pool for an address that was of none. It is in the status because the
// author of a Service, who writes the annotations, cannot write that.
const ConditionAddresses = "ironlb.io/Addresses"

// Record is what a ConditionAddresses says.
//
// +kubebuilder:object:generate=false
type Record struct {
	Addr netip.Addr
	Pool string
}

// FormatRecords returns the message of a ConditionAddresses.
func FormatRecords(records []Record) string {
	texts := make([]string, len(records))
	for i, r := range records {
		texts[i] = r.Addr.String() + "=" + r.Pool
	}
	return strings.Join(texts, ",")
}

// ParseRecords reads the message of a ConditionAddresses. What cannot be read is left out.
func ParseRecords(message string) []Record {
	var out []Record
	for text := range strings.SplitSeq(message, ",") {
		at, pool, ok := strings.Cut(text, "=")
		if addr, err := netip.ParseAddr(at); ok && err == nil && addr.Zone() == "" {
			out = append(out, Record{addr.Unmap(), pool})
		}
	}
	return out
}

// RecordsOf returns what the conditions of a Service record, and whether they record anything.
func RecordsOf(conditions []metav1.Condition) ([]Record, bool) {
	for _, c := range conditions {
		if c.Type == ConditionAddresses {
			return ParseRecords(c.Message), true
		}
	}
	return nil, false
}
