package allocation

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var assignments = metrics.NewHistogram(&metrics.HistogramOpts{
	Name:           "ironlb_ccm_assign_duration_seconds",
	Help:           "Time from the start of processing a Service until its assigned addresses are written.",
	Buckets:        []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	StabilityLevel: metrics.ALPHA,
})

// Metrics are all metrics of this package. They are registered when the first of them is measured.
var Metrics = []metrics.Registerable{assignments}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics...) })

// measureAssignment records how long the assignment of addresses to a Service took.
func measureAssignment(took time.Duration) {
	register()
	assignments.Observe(took.Seconds())
}
