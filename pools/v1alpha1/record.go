package v1alpha1

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ConditionAddresses of a Service records the addresses that the controller allocated to it, with their pools. Its
// message is for programs: ADDRESS=POOL, separated by commas, in the order of the addresses, with no pool for an
// address that was of none. It is in the status because the author of a Service, who writes the annotations, cannot
// write that.
const ConditionAddresses = "ironlb.io/Addresses"

// Record is the content of a ConditionAddresses.
//
// +kubebuilder:object:generate=false
type Record struct {
	Addr netip.Addr
	Pool string
}

// PoolOf returns the pool that is recorded for an address, and whether the address is recorded.
func PoolOf(records []Record, addr netip.Addr) (pool string, recorded bool) {
	i := slices.IndexFunc(records, func(r Record) bool { return r.Addr == addr })
	if i < 0 {
		return "", false
	}
	return records[i].Pool, true
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

// ConditionAllocated of a Service is True if its request is met, else False with the reason; its message is for people.
const ConditionAllocated = "ironlb.io/Allocated"

// RecordsOf returns the addresses recorded in the status of a Service, and whether the controller serves the Service or
// has it waiting.
func RecordsOf(svc *corev1.Service) (records []Record, ours bool) {
	for _, c := range svc.Status.Conditions {
		switch c.Type {
		case ConditionAddresses:
			return ParseRecords(c.Message), true
		case ConditionAllocated:
			ours = true
		}
	}
	return nil, ours
}
