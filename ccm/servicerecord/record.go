package servicerecord

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

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
