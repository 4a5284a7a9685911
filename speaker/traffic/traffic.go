// Package traffic exports the kernel's counters of virtual servers and endpoints as metrics. They are read when they
// are scraped, and cost nothing otherwise.
package traffic

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/plan"
)

// Detail is how much is exported.
type Detail string

// The details, each with more series. Those of virtual servers follow the Services, those of endpoints every rollout.
const (
	None           Detail = "none"
	VirtualServers Detail = "virtualServers"
	Endpoints      Detail = "endpoints"
)

// Most is the maximum number of exported virtual servers, and of exported endpoints: five series each, and seven. If
// there are more of a kind, none of it is exported, so that a scrape stays small.
const Most = 2000

// Source reads the counters. A data plane without counters returns none.
type Source interface {
	// VirtualStats returns those of all virtual servers, at the cost of one request.
	VirtualStats() (map[ipvs.Key]ipvs.Stats, error)
	// RealStats returns those of the real servers of these virtual servers, at the cost of one request each.
	RealStats(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error)
}

// Collector is a [prometheus.Collector] of the counters.
type Collector struct {
	source Source
	detail Detail
	log    *slog.Logger

	mu      sync.Mutex
	servers map[ipvs.Key]server
	// endpoints is their number over all servers.
	endpoints int

	// scraping serializes scrapes; logged is the last error.
	scraping sync.Mutex
	logged   string
}

// server is a virtual server of the plan.
type server struct {
	of        forwarding.ServicePort
	endpoints int
}

// New returns a registered Collector. With None it exports nothing.
func New(source Source, detail Detail, log *slog.Logger, reg prometheus.Registerer) *Collector {
	c := &Collector{source: source, detail: detail, log: log, servers: map[ipvs.Key]server{}}
	if detail != None {
		reg.MustRegister(c)
	}
	return c
}

// Update records the changed virtual servers of the plan.
func (c *Collector) Update(desired *plan.Desired, changed map[ipvs.Key]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range changed {
		c.endpoints -= c.servers[key].endpoints
		delete(c.servers, key)
		if of, exists := desired.ServicePorts[key]; exists {
			s := server{of: of, endpoints: len(desired.Table[key].RealServers)}
			c.servers[key], c.endpoints = s, c.endpoints+s.endpoints
		}
	}
}

// Describe lists the metrics.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []counters{virtualDescs, endpointDescs} {
		for desc := range d.with(ipvs.Stats{}) {
			out <- desc
		}
	}
	out <- activeDesc
	out <- inactiveDesc
	out <- omittedDesc
}

// Collect reads the counters.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	c.scraping.Lock()
	defer c.scraping.Unlock()
	servers, endpoints, omitted := c.known()
	for kind, n := range omitted {
		out <- prometheus.MustNewConstMetric(omittedDesc, prometheus.GaugeValue, float64(n), kind)
	}
	var err error
	if len(servers) > 0 {
		err = c.collectVirtual(out, servers)
	}
	if len(servers) > 0 && endpoints {
		err = errors.Join(err, c.collectEndpoints(out, servers))
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != c.logged && err != nil {
		c.log.Error("Failed to read traffic counters", "error", err)
	}
	c.logged = text
}

// known returns the virtual servers to export, whether to export their endpoints, and what is omitted because there is
// too much of it.
func (c *Collector) known() (servers map[ipvs.Key]server, endpoints bool, omitted map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	omitted = map[string]int{"virtual_servers": 0, "endpoints": 0}
	endpoints = c.detail == Endpoints
	if len(c.servers) > Most {
		omitted["virtual_servers"] = len(c.servers)
	}
	if endpoints && (c.endpoints > Most || len(c.servers) > Most) {
		omitted["endpoints"], endpoints = c.endpoints, false
	}
	if len(c.servers) <= Most {
		servers = maps.Clone(c.servers)
	}
	return servers, endpoints, omitted
}

func (c *Collector) collectVirtual(out chan<- prometheus.Metric, servers map[ipvs.Key]server) error {
	stats, err := c.source.VirtualStats()
	if err != nil {
		return err
	}
	for key, s := range stats {
		if server, ours := servers[key]; ours {
			virtualDescs.send(out, s, labels(key, server.of))
		}
	}
	return nil
}

func (c *Collector) collectEndpoints(out chan<- prometheus.Metric, servers map[ipvs.Key]server) error {
	stats, err := c.source.RealStats(slices.SortedFunc(maps.Keys(servers), ipvs.Key.Compare))
	if err != nil {
		return err
	}
	for key, server := range servers {
		for at, s := range stats[key] {
			values := append(labels(key, server.of), at.String())
			endpointDescs.send(out, s.Stats, values)
			out <- prometheus.MustNewConstMetric(activeDesc, prometheus.GaugeValue, float64(s.Active), values...)
			out <- prometheus.MustNewConstMetric(inactiveDesc, prometheus.GaugeValue, float64(s.Inactive), values...)
		}
	}
	return nil
}
