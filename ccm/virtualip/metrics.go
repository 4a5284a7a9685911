package virtualip

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/pools/v1alpha1"
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

var unannounced = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_ccm_unannounced_virtual_ips",
	Help:           "VirtualIPs that no node announces, by reason.",
	StabilityLevel: metrics.ALPHA,
}, []string{"reason"})

// Metrics are all metrics of this package. They are registered when the first of them is measured.
var Metrics = []metrics.Registerable{virtualIPs, placements, unannounced}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics...) })

// measureNodes sets how many lists each node leads.
func measureNodes(led map[string]int) {
	register()
	virtualIPs.Reset()
	for node, n := range led {
		virtualIPs.WithLabelValues(node).Set(float64(n))
	}
}

// notReported is the reason of a VirtualIP about which no speaker has reported.
const notReported = "NotReported"

// measureUnannounced sets the number of VirtualIPs without an owner, by the reason that a speaker reports.
func measureUnannounced(all map[string]*v1alpha1.VirtualIP) {
	register()
	counts := map[string]int{}
	for _, vip := range all {
		switch c := meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionAnnounced); {
		case len(vip.Spec.Nodes) == 0:
			counts[string(placement.NoEligibleNode)]++
		case c == nil:
			counts[notReported]++
		case c.Status != metav1.ConditionTrue:
			counts[c.Reason]++
		}
	}
	unannounced.Reset()
	for reason, n := range counts {
		unannounced.WithLabelValues(reason).Set(float64(n))
	}
}

// countPlacement counts a list that was written.
func countPlacement(why placement.Reason) {
	register()
	placements.WithLabelValues(string(why)).Inc()
}
