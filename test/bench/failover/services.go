package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/steady"
)

// Ports of the Services.
const (
	servicePortUDP = 53
	servicePortTCP = 90
)

// appBench is the label "app" of the Pods behind the addresses.
const appBench = "bench"

// services are the LoadBalancer Services of a peer: one for each address.
type services struct {
	b      *bench
	family string
	held   []netip.Addr
	inside map[netip.Addr]netip.Addr // address -> ClusterIP
}

// make creates the Services, unless a previous peer has, and waits for their addresses.
func (s *services) make(ctx context.Context) error {
	s.inside = map[netip.Addr]netip.Addr{}
	for i := range s.b.o.addresses {
		addr, clusterIP, err := s.service(ctx, fmt.Sprintf("%s-%d", s.family, i+1))
		if err != nil {
			return err
		}
		s.held, s.inside[addr] = append(s.held, addr), clusterIP
	}
	return nil
}

func (s *services) service(ctx context.Context, name string) (addr, clusterIP netip.Addr, err error) {
	family := corev1.IPv4Protocol
	if s.family == "ipv6" {
		family = corev1.IPv6Protocol
	}
	all := s.b.c.Kube.CoreV1().Services(metav1.NamespaceDefault)
	_, err = all.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": appBench},
			IPFamilies: []corev1.IPFamily{family},
			// After an outage of the API server Kubernetes considers every node, and so the Pod, not ready until
			// heartbeats arrive.
			PublishNotReadyAddresses: !s.b.withPods(),
			Ports: []corev1.ServicePort{
				{
					Name: "udp", Port: servicePortUDP, Protocol: corev1.ProtocolUDP,
					TargetPort: intstr.FromInt32(probe.PortUDP),
				},
				{Name: "tcp", Port: servicePortTCP, TargetPort: intstr.FromInt32(probe.PortStream)},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return addr, clusterIP, fmt.Errorf("make Service %s: %w", name, err)
	}
	err = s.b.c.Eventually(ctx, time.Minute, "Service "+name+" has an address", func(ctx context.Context) error {
		svc, err := all.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(svc.Status.LoadBalancer.Ingress) != 1 {
			return fmt.Errorf("it has %d", len(svc.Status.LoadBalancer.Ingress))
		}
		if clusterIP, err = netip.ParseAddr(svc.Spec.ClusterIP); err != nil {
			return err
		}
		addr, err = netip.ParseAddr(svc.Status.LoadBalancer.Ingress[0].IP)
		return err
	})
	return addr, clusterIP, err
}

func (s *services) addrs() []netip.Addr { return s.held }

func (s *services) target(addr netip.Addr) steady.Target {
	return steady.Target{UDP: netip.AddrPortFrom(addr, servicePortUDP), TCP: netip.AddrPortFrom(addr, servicePortTCP)}
}

func (s *services) clusterIP(addr netip.Addr) netip.Addr { return s.inside[addr] }
