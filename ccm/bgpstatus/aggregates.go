package bgpstatus

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Reasons of the condition Ready of a BGPAdvertisement whose prefix covers more than the addresses it selects.
const (
	reasonAggregateTooWide = "AggregateTooWide"
	reasonAggregateOfSome  = "AggregateOfSomeServices"
)

// evaluateAggregates records prefixes with addresses outside of the pool, or of Services that no selector matches:
// routers send packets for all of them here.
func (a *bgpAdvertisement) evaluateAggregates(all []v1alpha1.IPAddressPool) {
	for _, of := range []struct {
		family pools.Family
		field  string
		length int32
		single int32
	}{
		{pools.IPv4, "aggregationLength", a.spec.AggregationLength, 32},
		{pools.IPv6, "aggregationLengthV6", a.spec.AggregationLengthV6, 128},
	} {
		if of.length == 0 || of.length == of.single {
			continue
		}
		if len(a.Services) > 0 {
			a.problem(reasonAggregateOfSome, fmt.Sprintf("spec.%s: %d, but spec.serviceSelectors is for some Services, "+
				"and the prefix has addresses of others, too: write %d, or remove the selectors. The prefix is announced all the same", of.field, of.length, of.single))
		}
		for i := range all {
			pool := &all[i]
			ranges, err := pools.ParseRanges(pool.Spec.Addresses)
			if err != nil || !a.SelectsPool(pool.Name, pool.Labels) {
				continue
			}
			if wide, within := widePrefix(ranges, of.family, int(of.length)); wide.IsValid() {
				a.problem(reasonAggregateTooWide, fmt.Sprintf("spec.%s: %d announces %v, and IPAddressPool %s has only %v of it: "+
					"write a greater length, or add the addresses to the pool. The prefix is announced all the same", of.field, of.length, wide, pool.Name, within))
				break
			}
		}
	}
}

// widePrefix returns the first prefix of the length that has an address of the ranges and one outside of them. It also
// returns the range at the start or end of the prefix. The zero Prefix: there is none. Adjoining ranges count as one.
func widePrefix(ranges []pools.Range, family pools.Family, length int) (netip.Prefix, pools.Range) {
	var joined []pools.Range
	ranges = slices.DeleteFunc(slices.Clone(ranges), func(r pools.Range) bool { return r.Family() != family })
	slices.SortFunc(ranges, func(r, s pools.Range) int { return r.First.Compare(s.First) })
	for _, r := range ranges {
		if n := len(joined); n > 0 && r.First.Compare(joined[n-1].Last.Next()) <= 0 {
			if r.Last.Compare(joined[n-1].Last) > 0 {
				joined[n-1].Last = r.Last
			}
			continue
		}
		joined = append(joined, r)
	}
	for _, r := range joined {
		for _, end := range []netip.Addr{r.First, r.Last} {
			p, err := end.Prefix(length)
			if err == nil && (p.Addr().Compare(r.First) < 0 || pools.LastOf(p).Compare(r.Last) > 0) {
				return p, r
			}
		}
	}
	return netip.Prefix{}, pools.Range{}
}
