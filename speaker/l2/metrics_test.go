package l2

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Dashboards and alerts depend on these names.
func TestMetricNames(t *testing.T) {
	const want = `
# HELP ironlb_l2_announce_duration_seconds Time from programming and ownership of an address to its first announcement on an interface.
# TYPE ironlb_l2_announce_duration_seconds histogram
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.0001"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.00025"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.0005"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.001"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.0025"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.005"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.01"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.025"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.05"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.1"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.25"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="0.5"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="1"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="2.5"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="5"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv4",le="+Inf"} 0
ironlb_l2_announce_duration_seconds_sum{family="ipv4"} 0
ironlb_l2_announce_duration_seconds_count{family="ipv4"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.0001"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.00025"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.0005"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.001"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.0025"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.005"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.01"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.025"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.05"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.1"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.25"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="0.5"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="1"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="2.5"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="5"} 0
ironlb_l2_announce_duration_seconds_bucket{family="ipv6",le="+Inf"} 0
ironlb_l2_announce_duration_seconds_sum{family="ipv6"} 0
ironlb_l2_announce_duration_seconds_count{family="ipv6"} 0
# HELP ironlb_l2_announcements_total Gratuitous ARP frames and unsolicited neighbor advertisements sent.
# TYPE ironlb_l2_announcements_total counter
ironlb_l2_announcements_total{family="ipv4"} 0
ironlb_l2_announcements_total{family="ipv6"} 0
# HELP ironlb_l2_answers_total ARP requests and neighbor solicitations answered.
# TYPE ironlb_l2_answers_total counter
ironlb_l2_answers_total{family="ipv4"} 0
ironlb_l2_answers_total{family="ipv6"} 0
# HELP ironlb_l2_conflicts_total Times that another host was found to use a VirtualIP address, at its probe or while this node holds it.
# TYPE ironlb_l2_conflicts_total counter
ironlb_l2_conflicts_total{family="ipv4"} 0
ironlb_l2_conflicts_total{family="ipv6"} 0
# HELP ironlb_l2_defences_total Answers to other hosts' probes for held addresses, and announcements against other hosts that use them.
# TYPE ironlb_l2_defences_total counter
ironlb_l2_defences_total{family="ipv4"} 0
ironlb_l2_defences_total{family="ipv6"} 0
# HELP ironlb_l2_probes_total Probes sent for addresses before their first use.
# TYPE ironlb_l2_probes_total counter
ironlb_l2_probes_total{family="ipv4"} 0
ironlb_l2_probes_total{family="ipv6"} 0
# HELP ironlb_l2_proxies Hosts that answer for every address (proxy ARP). Their answers are ignored.
# TYPE ironlb_l2_proxies gauge
ironlb_l2_proxies{family="ipv4"} 0
ironlb_l2_proxies{family="ipv6"} 0
# HELP ironlb_l2_send_errors_total Frames that the kernel rejected.
# TYPE ironlb_l2_send_errors_total counter
ironlb_l2_send_errors_total{family="ipv4"} 0
ironlb_l2_send_errors_total{family="ipv6"} 0
`
	registry := prometheus.NewRegistry()
	New(Config{Log: slog.New(slog.DiscardHandler), Metrics: registry})
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
