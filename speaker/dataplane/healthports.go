package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// setPods passes the Pod sources to the drivers of the first tier and of ClusterInternal virtual servers.
func (d *DataPlane) setPods(todo *Work) {
	if !todo.Pods || d.drivers.ClusterInternal == nil && d.drivers.Direct == nil {
		return
	}
	var pods ipvs.PodSources
	for e := range d.in.Desired.Filter {
		switch e.Set {
		case ipvs.Pods:
			pods.Prefixes = append(pods.Prefixes, e.Prefix())
		case ipvs.PodInterfaces:
			pods.Interfaces = append(pods.Interfaces, e.Interface())
		}
	}
	slices.SortFunc(pods.Prefixes, netip.Prefix.Compare)
	slices.Sort(pods.Interfaces)
	pods.Interfaces = slices.Compact(pods.Interfaces) // one element per family
	var errs []error
	if d.drivers.ClusterInternal != nil {
		errs = append(errs, d.drivers.ClusterInternal.SetPods(pods))
	}
	if d.drivers.Direct != nil {
		errs = append(errs, d.drivers.Direct.SetPods(pods))
	}
	if err := errors.Join(errs...); err != nil {
		d.fail(err)
		d.failed.Pods = true
	}
}

// closeHealthPorts closes unwanted health check ports before any other change: load balancers must move away first. A
// kube-proxy that is to serve the port also tries it only once until something changes.
func (d *DataPlane) closeHealthPorts(todo *Work) {
	closed := false
	for service := range todo.Services {
		want, wanted := d.in.Desired.HealthPorts[service]
		if have, there := d.ports[service]; there && (!wanted || want.Port != have.Port) {
			delete(d.ports, service)
			closed = true
		}
	}
	if closed {
		d.serveHealthPorts()
	}
}

// setHealthPorts serves the health check ports if one of them changed.
func (d *DataPlane) setHealthPorts(todo *Work) {
	if d.drivers.HealthPorts == nil {
		return
	}
	changed := false
	for service := range todo.Services {
		want, wanted := d.in.Desired.HealthPorts[service]
		have, there := d.ports[service]
		changed = changed || wanted != there || want != have
		if wanted {
			d.ports[service] = want
		} else {
			delete(d.ports, service)
		}
	}
	if changed {
		d.serveHealthPorts()
	}
}

func (d *DataPlane) serveHealthPorts() {
	errs := d.drivers.HealthPorts.Set(maps.Clone(d.ports))
	for _, service := range slices.SortedFunc(maps.Keys(errs), compareKeys) {
		d.fail(fmt.Errorf("serve the health check port of Service %v: %w", service, errs[service]))
		d.failed.Services[service] = struct{}{}
		delete(d.ports, service) // so that it is retried
	}
}

// setChecks sets the probes that are needed.
func (d *DataPlane) setChecks(todo *Work) {
	if todo.Checks && d.drivers.Checks != nil {
		d.drivers.Checks.Set(maps.Clone(d.in.Desired.Checks))
	}
}

func compareKeys(a, b pools.ServiceKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
