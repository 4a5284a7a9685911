package main

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

// The addresses are of the range that RFC 2544 reserves for benchmarks: 5,000 Services do not fit into the
// documentation ranges. They are used only in the lab's namespaces.
var (
	clusterIPs = netip.MustParsePrefix("198.18.0.0/16")
	vips       = netip.MustParsePrefix("198.19.0.0/17")
	endpoints  = netip.MustParsePrefix("198.19.128.0/17")
	spare      = netip.MustParseAddr("198.19.255.254") // new address of changed endpoints
)

const (
	maxServices  = 8000
	perService   = 4
	namespace    = "default"
	port         = 80
	serviceClass = "bench.ironlb.io/by-hand" // no controller assigns addresses
)

// nth returns the n-th address of an IPv4 prefix.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().As4()
	b[2] += byte(n >> 8)
	b[3] += byte(n)
	return netip.AddrFrom4(b)
}

func serviceName(i int) string { return fmt.Sprintf("bench-%04d", i) }

// vip returns the LoadBalancer address of a Service.
func vip(i int) netip.AddrPort { return netip.AddrPortFrom(nth(vips, i+1), port) }

// grow adds the Services from number from to before number to. Number 0 has the Pods as endpoints, the others unused
// addresses.
func grow(ctx context.Context, kube kubernetes.Interface, from, to int, pods []netip.Addr) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := from; i < to; i++ {
		addrs := pods
		if i > 0 {
			addrs = nil
			for j := range perService {
				addrs = append(addrs, nth(endpoints, perService*i+j))
			}
		}
		group.Go(func() error {
			if err := create(ctx, kube, i, addrs); err != nil {
				return fmt.Errorf("make Service %s: %w", serviceName(i), err)
			}
			return nil
		})
	}
	return group.Wait()
}

func create(ctx context.Context, kube kubernetes.Interface, i int, addrs []netip.Addr) error {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To(serviceClass),
			AllocateLoadBalancerNodePorts: ptr.To(false),
			Ports:                         []corev1.ServicePort{{Name: "http", Port: port, Protocol: corev1.ProtocolTCP}},
		},
	}
	if _, err := kube.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		return err
	}
	status, err := json.Marshal(map[string]any{"status": map[string]any{"loadBalancer": map[string]any{
		"ingress": []map[string]any{{"ip": vip(i).Addr().String(), "ipMode": "VIP"}},
	}}})
	if err != nil {
		return err
	}
	_, err = kube.CoreV1().Services(namespace).Patch(ctx, serviceName(i), types.MergePatchType, status, metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: serviceName(i), Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("http"), Port: ptr.To[int32](probe.PortHTTP), Protocol: ptr.To(corev1.ProtocolTCP),
		}},
	}
	for _, addr := range addrs {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	_, err = kube.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{})
	return err
}
