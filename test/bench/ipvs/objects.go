package main

import (
	"context"
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ironlb/ironlb/test/bench/services"
)

var (
	clusterIPs = services.ClusterIPs
	endpoints  = services.Endpoints
	spare      = netip.MustParseAddr("198.19.255.254") // new address of changed endpoints
)

const (
	maxServices  = services.Most
	perService   = services.PerService
	namespace    = services.Namespace
	port         = services.Port
	serviceClass = "bench.ironlb.io/by-hand" // no controller assigns addresses
)

func nth(p netip.Prefix, n int) netip.Addr { return services.Nth(p, n) }

func serviceName(i int) string { return services.Name(i) }

// vip returns the LoadBalancer address of a Service.
func vip(i int) netip.AddrPort { return netip.AddrPortFrom(nth(services.LoadBalancers, i+1), port) }

// grow adds the Services from number from to before number to. Number 0 has the Pods as endpoints, the others unused
// addresses.
func grow(ctx context.Context, kube kubernetes.Interface, from, to int, pods []netip.Addr) error {
	return services.Grow(ctx, kube, from, to, services.Spec{
		Class:   serviceClass,
		Address: func(i int) netip.Addr { return vip(i).Addr() },
		Endpoints: func(i int) []discoveryv1.Endpoint {
			if i == 0 {
				return services.Ready(pods...)
			}
			return services.Unused(i)
		},
	})
}
