package bgpstatus

import (
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// defaultLocalPref is the LOCAL_PREF sent to an internal peer without a configured value. RFC 4271, 9.1.1 leaves it to
// the speaker; all implementations use this one.
const defaultLocalPref = 100

// bgpAdvertisement is a parsed BGPAdvertisement.
type bgpAdvertisement struct {
	advertisement.Selection
	spec *v1alpha1.BGPAdvertisementSpec
	name string
	// reason is that of the first problem; problems are all of them.
	reason   string
	problems []string
	// withheld is set while a community is missing: it announces nothing.
	withheld bool
}

func (a *bgpAdvertisement) problem(reason, text string) {
	if a.reason == "" {
		a.reason = reason
	}
	a.problems = append(a.problems, text)
}

func (a *bgpAdvertisement) localPref() int64 {
	if a.spec.LocalPref == nil {
		return defaultLocalPref
	}
	return *a.spec.LocalPref
}

func (a *bgpAdvertisement) advertisesTo(peer string) bool {
	return len(a.spec.Peers) == 0 || slices.Contains(a.spec.Peers, peer)
}

// length returns the aggregation length for the address's family.
func (a *bgpAdvertisement) length(addr netip.Addr) int {
	if addr.Is4() {
		return int(a.spec.AggregationLength)
	}
	return int(a.spec.AggregationLengthV6)
}
