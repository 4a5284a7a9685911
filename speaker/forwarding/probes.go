package forwarding

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// The probe of a node by policy: its healthCheckNodePort with Local, which answers on any path;
// its service proxy with Cluster.
const (
	healthzPort, healthzPath = 10256, "/healthz"
	healthCheckPath          = "/"
)

// probed requests the probe of a node and returns its weight according to the result.
func (w *planning) probed(name string, addr netip.Addr, weight uint32) uint32 {
	check := view.Check{Node: name, Addr: addr, Port: healthzPort, Path: healthzPath}
	byWeight := w.svc.Local && w.svc.HealthCheckNodePort != 0
	if byWeight {
		check.Port, check.Path = w.svc.HealthCheckNodePort, healthCheckPath
	}
	w.checks[check] = struct{}{}
	result, known := w.view.Checks[check]
	switch {
	case known && !result.Healthy:
		return 0
	case known && byWeight && result.Weight > 0 && weight > 0:
		weight = result.Weight
	}
	return min(weight, ipvs.MaxWeight)
}
