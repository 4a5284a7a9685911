package virtualip

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/pools/v1alpha1"
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

// TestUnannouncedCounted: each VirtualIP that no node announces counts, by the reason that the speaker reports.
func TestUnannouncedCounted(t *testing.T) {
	vip := func(nodes []string, status metav1.ConditionStatus, reason string) *v1alpha1.VirtualIP {
		v := &v1alpha1.VirtualIP{Spec: v1alpha1.VirtualIPSpec{Nodes: nodes}}
		if status != "" {
			v.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAnnounced, Status: status, Reason: reason}}
		}
		return v
	}
	listed := []string{"a", "b"}
	for _, c := range []struct {
		all  map[string]*v1alpha1.VirtualIP
		want map[string]float64
	}{
		{map[string]*v1alpha1.VirtualIP{
			"1": vip(listed, metav1.ConditionTrue, "Owner"), "2": vip(listed, metav1.ConditionFalse, "NoInterface"),
			"3": vip(listed, metav1.ConditionFalse, "NoInterface"),
			"4": vip(listed, "", ""), "5": vip(nil, "", ""), "6": vip(nil, metav1.ConditionFalse, "NoEligibleNode"),
		}, map[string]float64{"NoInterface": 2, "NotReported": 1, "NoEligibleNode": 2}},
		{map[string]*v1alpha1.VirtualIP{"1": vip(listed, metav1.ConditionTrue, "Owner")}, map[string]float64{}},
	} {
		measureUnannounced(c.all)
		have := map[string]float64{}
		families, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == unannounced.FQName() {
					have[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		if !maps.Equal(have, c.want) {
			t.Errorf("have %v, want %v", have, c.want)
		}
	}
}
