package speaker

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// setPods passes the Pod sources to the driver of ClusterInternal virtual servers.
func (s *Speaker) setPods(todo *work) {
	if !todo.pods || s.cfg.Node.Inside == nil {
		return
	}
	var pods ipvs.PodSources
	for e := range s.desired.Filter {
		switch e.Set {
		case ipvs.Pods:
			pods.Prefixes = append(pods.Prefixes, e.Prefix)
		case ipvs.PodInterfaces:
			pods.Interfaces = append(pods.Interfaces, e.Interface)
		}
	}
	slices.SortFunc(pods.Prefixes, netip.Prefix.Compare)
	slices.Sort(pods.Interfaces)
	pods.Interfaces = slices.Compact(pods.Interfaces) // one element per family
	if err := s.cfg.Node.Inside.SetPods(pods); err != nil {
		s.fail(err)
		s.failed.pods = true
	}
}

// closeHealthPorts closes unwanted health check ports before any other change: load balancers must move away first. A
// kube-proxy that is to serve the port also tries it only once until something changes.
func (s *Speaker) closeHealthPorts(todo *work) {
	closed := false
	for service := range todo.services {
		want, wanted := s.desired.HealthPorts[service]
		if have, there := s.ports[service]; there && (!wanted || want.Port != have.Port) {
			delete(s.ports, service)
			closed = true
		}
	}
	if closed {
		s.serveHealthPorts()
	}
}

// setHealthPorts serves the health check ports if one of them changed.
func (s *Speaker) setHealthPorts(todo *work) {
	if s.cfg.Node.HealthPorts == nil {
		return
	}
	changed := false
	for service := range todo.services {
		want, wanted := s.desired.HealthPorts[service]
		have, there := s.ports[service]
		changed = changed || wanted != there || want != have
		if wanted {
			s.ports[service] = want
		} else {
			delete(s.ports, service)
		}
	}
	if changed {
		s.serveHealthPorts()
	}
}

func (s *Speaker) serveHealthPorts() {
	errs := s.cfg.Node.HealthPorts.Set(maps.Clone(s.ports))
	for _, service := range slices.SortedFunc(maps.Keys(errs), compareKeys) {
		s.fail(fmt.Errorf("serve the health check port of Service %v: %w", service, errs[service]))
		s.failed.services[service] = struct{}{}
		delete(s.ports, service) // so that it is retried
	}
}

// setChecks sets the probes that are needed.
func (s *Speaker) setChecks(todo *work) {
	if todo.checks && s.cfg.Node.Checks != nil {
		s.cfg.Node.Checks.Set(maps.Clone(s.desired.Checks))
	}
}

func compareKeys(a, b pools.ServiceKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
