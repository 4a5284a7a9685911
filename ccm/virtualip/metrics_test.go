package virtualip

import (
	"testing"

	"k8s.io/component-base/metrics/testutil"

	"github.com/ironlb/ironlb/ccm/placement"
)

// TestPlacementsCounted: each list that is written counts, by its reason.
func TestPlacementsCounted(t *testing.T) {
	count := func(why placement.Reason) float64 {
		register() // before it nothing is counted
		n, err := testutil.GetCounterMetricValue(placements.WithLabelValues(string(why)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	created, leads := count(placement.Created), count(placement.OwnerLeads)
	f := settledPlacerFixture(t, "a b c", 6)
	if n := count(placement.Created) - created; n != 6 {
		t.Errorf("%v created, want 6", n)
	}
	v := f.seen()[f.units[0].name()]
	f.hold(v.Name, v.Spec.Nodes[1])
	f.pass(exactAfter)
	if n := count(placement.OwnerLeads) - leads; n != 1 {
		t.Errorf("%v lists follow an owner, want 1", n)
	}
}
