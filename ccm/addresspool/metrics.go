package addresspool

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

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

// Metrics are all metrics of this package. They are registered when the first of them is measured.
var Metrics = []metrics.Registerable{poolAddresses, poolReady}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics...) })

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
