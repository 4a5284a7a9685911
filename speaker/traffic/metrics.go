package traffic

import (
	"net/netip"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/forwarding"
)

var (
	virtualLabels  = []string{"namespace", "service", "port", "protocol", "virtual_server"}
	endpointLabels = append(virtualLabels[:len(virtualLabels):len(virtualLabels)], "endpoint")

	virtualDescs  = newCounters("", "of a virtual server", virtualLabels)
	endpointDescs = newCounters("endpoint_", "of an endpoint", endpointLabels)

	activeDesc = desc("endpoint_active_connections",
		"Established TCP connections of an endpoint.", endpointLabels)
	inactiveDesc = desc("endpoint_inactive_connections",
		"Other connections of an endpoint: opening or closing TCP connections, UDP and SCTP.", endpointLabels)
	omittedDesc = desc("omitted", "Virtual servers or endpoints without metrics because there are too many.", []string{"kind"})
	errorsDesc  = desc("read_errors_total", "Failed reads of these counters by scrapes.", nil)
)

func desc(name, help string, labels []string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("ironlb", "ipvs", name), help, labels, nil)
}

// counters describe the fields of ipvs.Stats.
type counters struct{ connections, packetsIn, packetsOut, bytesIn, bytesOut *prometheus.Desc }

func newCounters(prefix, of string, labels []string) counters {
	counter := func(name, help string) *prometheus.Desc { return desc(prefix+name, help+" "+of+".", labels) }
	return counters{
		connections: counter("connections_total", "Connections"),
		packetsIn:   counter("incoming_packets_total", "Packets from clients"),
		packetsOut:  counter("outgoing_packets_total", "Packets to clients"),
		bytesIn:     counter("incoming_bytes_total", "Bytes from clients"),
		bytesOut:    counter("outgoing_bytes_total", "Bytes to clients"),
	}
}

func (c counters) send(out chan<- prometheus.Metric, s ipvs.Stats, labels []string) {
	for d, value := range c.with(s) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
}

func (c counters) with(s ipvs.Stats) map[*prometheus.Desc]uint64 {
	return map[*prometheus.Desc]uint64{
		c.connections: s.Connections, c.packetsIn: s.PacketsIn, c.packetsOut: s.PacketsOut, c.bytesIn: s.BytesIn,
		c.bytesOut: s.BytesOut,
	}
}

// labels returns the values of virtualLabels.
func labels(key ipvs.Key, of forwarding.ServicePort) []string {
	return []string{
		of.Service.Namespace, of.Service.Name, strconv.Itoa(int(of.Port)), key.Protocol.String(),
		netip.AddrPortFrom(key.Addr, key.Port).String(),
	}
}
