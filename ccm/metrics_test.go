package ccm

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/legacyregistry"
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
	d := settledBureau(t, "a b c", 6)
	if n := count(placement.Created) - created; n != 6 {
		t.Errorf("%v created, want 6", n)
	}
	v := d.seen()[d.units[0].name()]
	d.hold(v.Name, v.Spec.Nodes[1])
	d.pass(exactAfter)
	if n := count(placement.OwnerLeads) - leads; n != 1 {
		t.Errorf("%v lists follow an owner, want 1", n)
	}
}

// TestAssignmentsMeasured: an address counts when it is written, with the duration until the write. A Service that
// waits or already has its address does not count.
func TestAssignmentsMeasured(t *testing.T) {
	measured := func() (n uint64, took float64) {
		register()
		all, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range all {
			if of.GetName() == "ironlb_ccm_assign_duration_seconds" {
				n, took = of.Metric[0].Histogram.GetSampleCount(), of.Metric[0].Histogram.GetSampleSum()
			}
		}
		return n, took
	}
	const slow = 30 * time.Millisecond
	d := newDesk(t, "203.0.113.4/32")
	d.adopt()
	d.api.PrependReactor("patch", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-time.After(slow)
		return false, nil, nil
	})
	before, tookBefore := measured()
	first := serviceFor("first", func(s *v1.Service) { s.UID = "first" })
	for range 2 {
		d.ensure(first)
	}
	d.ensure(serviceFor("waits"))
	n, took := measured()
	if n-before != 1 || took-tookBefore < slow.Seconds() {
		t.Errorf("%d measured in %v s, want 1 in at least %v", n-before, took-tookBefore, slow)
	}
}

// TestMetricsAreDocumented: docs/reference/metrics.md lists exactly the metrics of this package.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## ironlb-ccm\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var got, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(ironlb_[a-z0-9_]+)").FindAllStringSubmatch(section, -1) {
		want = append(want, m[1])
	}
	for _, m := range ours {
		got = append(got, m.FQName())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("there are %v, docs/reference/metrics.md has %v", got, want)
	}
}
