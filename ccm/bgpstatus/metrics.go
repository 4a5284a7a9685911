package bgpstatus

import (
	"net/netip"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var unservedAddresses = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_ccm_bgp_unserved_addresses",
	Help:           "Addresses covered by a BGPAdvertisement that no node serves, by reason.",
	StabilityLevel: metrics.ALPHA,
}, []string{"reason"})

// Metrics are all metrics of this package. They are registered when the first of them is measured.
var Metrics = []metrics.Registerable{unservedAddresses}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics...) })

// measureUnserved sets the number of unserved addresses by reason. Each reason is present, so that alerts can rely on
// it.
func measureUnserved(all map[string][]netip.Addr) {
	register()
	for reason := range unservedMessages {
		unservedAddresses.WithLabelValues(reason).Set(float64(len(all[reason])))
	}
}
