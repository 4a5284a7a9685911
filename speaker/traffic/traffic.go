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
	None Detail = "none"
	// Auto is VirtualServers where they are counted anyway: in IPVS.
	Auto           Detail = "auto"
	VirtualServers Detail = "virtualServers"
	Endpoints      Detail = "endpoints"
)

// The maximum number of exported virtual servers, with five series each, and of exported endpoints, with seven series
// each and up to one request each. If there are more of a kind, none of it is exported, so that a scrape stays small.
const (
	MostVirtualServers = 10000
	MostEndpoints      = 2000
)

// Source is a data plane that may count.
type Source interface {
	Reader
	// Counts reports whether it does. One that is not known yet does not.
	Counts() bool
}

// Reader reads the counters.
type Reader interface {
	// VirtualStats returns those of all virtual servers, at the cost of one request.
	VirtualStats() (map[ipvs.Key]ipvs.Stats, error)
	// RealStats returns those of the real servers of these virtual servers, at the cost of one request each. With an
	// error it returns those that it could read.
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

	// scraping serializes scrapes; logged is the last error, failures their number.
	scraping sync.Mutex
	logged   string
	failures int
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
	out <- errorsDesc
}

// Collect reads the counters. Without any in the data plane it exports nothing.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	if !c.source.Counts() {
		return
	}
	c.scraping.Lock()
	defer c.scraping.Unlock()
	servers, withEndpoints, omitted := c.known()
	for kind, n := range omitted {
		out <- prometheus.MustNewConstMetric(omittedDesc, prometheus.GaugeValue, float64(n), kind)
	}
	var errs []error
	if len(servers) > 0 {
		errs = append(errs, c.collectVirtual(out, servers))
	}
	if len(withEndpoints) > 0 {
		errs = append(errs, c.collectEndpoints(out, withEndpoints))
	}
	c.record(errs)
	out <- prometheus.MustNewConstMetric(errorsDesc, prometheus.CounterValue, float64(c.failures))
}

// record counts errors, and logs them when they appear or change.
func (c *Collector) record(errs []error) {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	c.failures += len(errs)
	text := ""
	if err := errors.Join(errs...); err != nil {
		text = err.Error()
	}
	if text != c.logged && text != "" {
		c.log.Error("Failed to read traffic counters", "error", text)
	}
	c.logged = text
}

// known returns the virtual servers to export, those whose endpoints to export, and what is omitted because there is
// too much of it.
func (c *Collector) known() (servers, withEndpoints map[ipvs.Key]server, omitted map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	omitted = map[string]int{"virtual_servers": 0, "endpoints": 0}
	if len(c.servers) > MostVirtualServers {
		omitted["virtual_servers"] = len(c.servers)
	} else {
		servers = maps.Clone(c.servers)
	}
	switch {
	case c.detail != Endpoints:
	case c.endpoints > MostEndpoints:
		omitted["endpoints"] = c.endpoints
	default:
		withEndpoints = maps.Clone(c.servers)
		maps.DeleteFunc(withEndpoints, func(_ ipvs.Key, s server) bool { return s.endpoints == 0 })
	}
	return servers, withEndpoints, omitted
}

func (c *Collector) collectVirtual(out chan<- prometheus.Metric, servers map[ipvs.Key]server) error {
	stats, err := c.source.VirtualStats()
	for key, s := range stats {
		if server, ours := servers[key]; ours {
			virtualDescs.send(out, s, labels(key, server.of))
		}
	}
	return err
}

func (c *Collector) collectEndpoints(out chan<- prometheus.Metric, servers map[ipvs.Key]server) error {
	stats, err := c.source.RealStats(slices.SortedFunc(maps.Keys(servers), ipvs.Key.Compare))
	for key, server := range servers {
		for at, s := range stats[key] {
			values := append(labels(key, server.of), at.String())
			endpointDescs.send(out, s.Stats, values)
			out <- prometheus.MustNewConstMetric(activeDesc, prometheus.GaugeValue, float64(s.Active), values...)
			out <- prometheus.MustNewConstMetric(inactiveDesc, prometheus.GaugeValue, float64(s.Inactive), values...)
		}
	}
	return err
}
