package virtualip

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/ironlb/ironlb/ccm/placement"
)

var virtualIPs = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_node_virtual_ips",
	Help:           "VirtualIPs that are placed on a node first.",
	StabilityLevel: metrics.ALPHA,
}, []string{"node"})

var placements = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "ironlb_ccm_placements_total",
	Help:           "placements of virtualIPs that were written, by reason.",
	StabilityLevel: metrics.ALPHA,
}, []string{"reason"})

// Metrics are all metrics of this package. They are registered when the first of them is measured.
var Metrics = []metrics.Registerable{virtualIPs, placements}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics...) })

// measureNodes sets how many lists each node leads.
func measureNodes(led map[string]int) {
	register()
	virtualIPs.Reset()
	for node, n := range led {
		virtualIPs.WithLabelValues(node).Set(float64(n))
	}
}

// countPlacement counts a list that was written.
func countPlacement(why placement.Reason) {
	register()
	placements.WithLabelValues(string(why)).Inc()
}
