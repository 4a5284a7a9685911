package ccm

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/pools"
)

var poolAddresses = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_pool_addresses",
	Help:           "Addresses of a pool, by family and state (assigned, available).",
	StabilityLevel: metrics.ALPHA,
}, []string{"pool", "family", "state"})

var poolReady = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_pool_ready",
	Help:           "1 while a pool is in use as specified, 0 while it is invalid or overlaps an older one.",
	StabilityLevel: metrics.ALPHA,
}, []string{"pool"})

var virtualIPs = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_node_virtual_ips",
	Help:           "VirtualIPs that are placed on a node first.",
	StabilityLevel: metrics.ALPHA,
}, []string{"node"})

var placements = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "ironlb_ccm_placements_total",
	Help:           "Placements of VirtualIPs that were written, by reason.",
	StabilityLevel: metrics.ALPHA,
}, []string{"reason"})

var assignments = metrics.NewHistogram(&metrics.HistogramOpts{
	Name:           "ironlb_ccm_assign_duration_seconds",
	Help:           "Time from the start of processing a Service until its assigned addresses are written.",
	Buckets:        []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	StabilityLevel: metrics.ALPHA,
})

// ours are all metrics of this package.
var ours = []metrics.Registerable{poolAddresses, poolReady, virtualIPs, placements, assignments}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(ours...) })

// measurePools sets the gauges of all pools.
func measurePools(all []pools.PoolStatus, ready map[string]bool) {
	register()
	poolAddresses.Reset()
	poolReady.Reset()
	for name, is := range ready {
		n := 0.
		if is {
			n = 1
		}
		poolReady.WithLabelValues(name).Set(n)
	}
	for _, p := range all {
		poolAddresses.WithLabelValues(p.Name, "IPv4", "assigned").Set(float64(p.AssignedIPv4))
		poolAddresses.WithLabelValues(p.Name, "IPv6", "assigned").Set(float64(p.AssignedIPv6))
		poolAddresses.WithLabelValues(p.Name, "IPv4", "available").Set(float64(p.AvailableIPv4))
		poolAddresses.WithLabelValues(p.Name, "IPv6", "available").Set(float64(p.AvailableIPv6))
	}
}

// measureNodes sets how many lists each node leads.
func measureNodes(led map[string]int) {
	register()
	virtualIPs.Reset()
	for node, n := range led {
		virtualIPs.WithLabelValues(node).Set(float64(n))
	}
}

// measureAssignment records how long the assignment of addresses to a Service took.
func measureAssignment(took time.Duration) {
	register()
	assignments.Observe(took.Seconds())
}

// countPlacement counts a list that was written.
func countPlacement(why placement.Reason) {
	register()
	placements.WithLabelValues(string(why)).Inc()
}
