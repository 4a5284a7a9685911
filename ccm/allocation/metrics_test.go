package allocation

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/ironlb/ironlb/ccm/ccmtest"
)

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
	f := newFixture(t, "203.0.113.4/32")
	f.Adopt()
	f.Api.PrependReactor("patch", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-time.After(slow)
		return false, nil, nil
	})
	before, tookBefore := measured()
	first := ccmtest.ServiceFor("first", func(s *v1.Service) { s.UID = "first" })
	for range 2 {
		f.Ensure(first)
	}
	f.Ensure(ccmtest.ServiceFor("waits"))
	n, took := measured()
	if n-before != 1 || took-tookBefore < slow.Seconds() {
		t.Errorf("%d measured in %v s, want 1 in at least %v", n-before, took-tookBefore, slow)
	}
}
