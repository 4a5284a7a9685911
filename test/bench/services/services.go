// Package services creates many Services of one TCP port at once, each with an EndpointSlice of its own, for
// measurements of labs.
//
// The addresses are of the range that RFC 2544 reserves for benchmarks: 5,000 Services do not fit into the
// documentation ranges. They are used only in the lab's namespaces.
package services

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// Ranges for the Services of a lab.
var (
	ClusterIPs    = netip.MustParsePrefix("198.18.0.0/17")
	LoadBalancers = netip.MustParsePrefix("198.18.128.0/17")
	Endpoints     = netip.MustParsePrefix("198.19.0.0/16")
)

const (
	// Most is the number of Services that the ranges allow.
	Most        = 16000
	PerService  = 4 // endpoints
	Namespace   = "default"
	Port        = 80
	portName    = "http"
	concurrency = 16
)

// Nth returns the n-th address of an IPv4 prefix.
func Nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().As4()
	b[2] += byte(n >> 8)
	b[3] += byte(n)
	return netip.AddrFrom4(b)
}

// Name returns the name of Service i and of its EndpointSlice.
func Name(i int) string { return fmt.Sprintf("bench-%04d", i) }

// Spec is what the Services of a measurement have besides their port.
type Spec struct {
	// Class is the loadBalancerClass; empty for none.
	Class string
	// Address returns the address of Service i that is written to its status, with ipMode VIP; nil if a controller
	// assigns one.
	Address func(i int) netip.Addr
	// Endpoints returns the endpoints of Service i; nil for PerService unused addresses of the range Endpoints.
	Endpoints func(i int) []discoveryv1.Endpoint
}

// Grow adds the Services from number from to before number to.
func Grow(ctx context.Context, kube kubernetes.Interface, from, to int, s Spec) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i := from; i < to; i++ {
		group.Go(func() error {
			if err := s.create(ctx, kube, i); err != nil {
				return fmt.Errorf("make Service %s: %w", Name(i), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Unused returns PerService ready endpoints for Service i at addresses that no Pod has. nodes, if any, are the nodes of
// the endpoints, one after the other.
func Unused(i int, nodes ...string) []discoveryv1.Endpoint {
	var addrs []netip.Addr
	for j := range PerService {
		addrs = append(addrs, Nth(Endpoints, PerService*i+j))
	}
	endpoints := Ready(addrs...)
	for j := range endpoints {
		if len(nodes) > 0 {
			endpoints[j].NodeName = ptr.To(nodes[(i+j)%len(nodes)])
		}
	}
	return endpoints
}

// Ready returns ready endpoints at the addresses.
func Ready(addrs ...netip.Addr) (endpoints []discoveryv1.Endpoint) {
	for _, addr := range addrs {
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	return endpoints
}

func (s Spec) create(ctx context.Context, kube kubernetes.Interface, i int) error {
	if _, err := kube.CoreV1().Services(Namespace).Create(ctx, s.service(i), metav1.CreateOptions{}); err != nil {
		return err
	}
	if s.Address != nil {
		if err := assign(ctx, kube, i, s.Address(i)); err != nil {
			return err
		}
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: Name(i), Labels: map[string]string{discoveryv1.LabelServiceName: Name(i)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To(portName), Port: ptr.To[int32](probe.PortHTTP), Protocol: ptr.To(corev1.ProtocolTCP),
		}},
		Endpoints: Unused(i),
	}
	if s.Endpoints != nil {
		slice.Endpoints = s.Endpoints(i)
	}
	_, err := kube.DiscoveryV1().EndpointSlices(Namespace).Create(ctx, slice, metav1.CreateOptions{})
	return err
}

func (s Spec) service(i int) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: Name(i)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false),
			Ports: []corev1.ServicePort{{Name: portName, Port: Port, Protocol: corev1.ProtocolTCP}},
		},
	}
	if s.Class != "" {
		svc.Spec.LoadBalancerClass = ptr.To(s.Class)
	}
	return svc
}

// assign writes an address to the status of Service i.
func assign(ctx context.Context, kube kubernetes.Interface, i int, addr netip.Addr) error {
	status, err := json.Marshal(map[string]any{"status": map[string]any{"loadBalancer": map[string]any{
		"ingress": []map[string]any{{"ip": addr.String(), "ipMode": "VIP"}},
	}}})
	if err != nil {
		return err
	}
	_, err = kube.CoreV1().Services(Namespace).Patch(ctx, Name(i), types.MergePatchType, status, metav1.PatchOptions{}, "status")
	return err
}
