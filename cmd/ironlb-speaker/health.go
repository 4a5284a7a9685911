package main

import (
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/view"
)

// bothFamilies are planned and applied together.
var bothFamilies = []health.Family{health.IPv4, health.IPv6}

// healthPorts serve the healthCheckNodePorts and write Events about those that cannot be served.
type healthPorts struct {
	ports *health.Ports
	// failed receives the ports that cannot be served, the full set each time.
	failed func(map[pools.ServiceKey]error)
}

func (h healthPorts) Set(want map[pools.ServiceKey]forwarding.HealthPort) map[pools.ServiceKey]error {
	ports := make(map[health.Service]health.Port, len(want))
	for key, port := range want {
		ports[health.Service{Namespace: key.Namespace, Name: key.Name}] = health.Port{
			Number: port.Port, Endpoints: port.IPv4Endpoints, IPv6Endpoints: port.IPv6Endpoints, Addrs: port.Addrs.Addrs(),
		}
	}
	failed := map[pools.ServiceKey]error{}
	for service, err := range h.ports.Set(ports) {
		failed[pools.ServiceKey{Namespace: service.Namespace, Name: service.Name}] = err
	}
	h.failed(failed)
	return failed
}

// checks are the probes of other nodes and of new endpoints. Their results go to the source.
type checks struct {
	prober    *health.Prober
	newcomers *health.Newcomers
	source    *kube.Source

	mu   sync.Mutex
	have map[view.Check]struct{}
}

func newChecks(source *kube.Source, log *slog.Logger, metrics prometheus.Registerer) *checks {
	c := &checks{source: source}
	c.prober = health.NewProber(health.ProberConfig{
		Log:     log,
		Changed: func(check health.Check, result health.Result) { c.found(view.Check(check), view.CheckResult(result)) },
	})
	c.newcomers = health.NewNewcomers(health.NewcomersConfig{
		Log: log, Metrics: metrics,
		// The plan ends a check that has no result after NewFor, and then it would be in no metric.
		Limit: forwarding.NewFor - 500*time.Millisecond,
		Ended: func(at netip.AddrPort) {
			c.found(view.Check{Addr: at.Addr(), Port: at.Port()}, view.CheckResult{Healthy: true, Weight: 1})
		},
	})
	return c
}

// Set replaces the checks. The result of a removed check is deleted.
func (c *checks) Set(want map[view.Check]struct{}) {
	nodes, endpoints := map[health.Check]struct{}{}, map[netip.AddrPort]struct{}{}
	for check := range want {
		if check.Path == "" {
			endpoints[netip.AddrPortFrom(check.Addr, check.Port)] = struct{}{}
		} else {
			nodes[health.Check(check)] = struct{}{}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock() // held during the calls of source: a result must not arrive after its deletion
	before := c.have
	c.have = maps.Clone(want)
	c.prober.Set(nodes)
	c.newcomers.Set(endpoints)
	for check := range before {
		if _, still := want[check]; !still {
			c.source.Checked(check, nil)
		}
	}
}

// found records the result of a check that is still wanted.
func (c *checks) found(check view.Check, result view.CheckResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, wanted := c.have[check]; wanted {
		c.source.Checked(check, &result)
	}
}

// progress reports the loop's progress to healthz, and to the virtual servers when all of them are programmed.
type progress struct {
	healthz    *health.Healthz
	programmed func()
}

func (p progress) Applied(before time.Time) {
	p.programmed()
	p.healthz.Applied(before, bothFamilies...)
}

func (p progress) SetNode(eligible bool) { p.healthz.SetNode(eligible) }
