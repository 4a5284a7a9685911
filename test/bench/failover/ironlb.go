package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/steady"
)

// Ports of the Services.
const (
	servicePortUDP = 53
	servicePortTCP = 90
)

// ironlb holds each address by a Service of its own, with one Pod behind all.
type ironlb struct {
	b       *bench
	family  string
	profile string
	held    []netip.Addr
	ending  map[*lab.Node]chan error // speakers that were sent SIGTERM
}

// objects of a cluster with IronLB: a pool of both families, announced on the candidates.
const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: bench}
spec: {addresses: [%q, %q]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: bench}
spec:
  ipAddressPools: [bench]
  nodeSelectors:
  - matchExpressions:
    - {key: kubernetes.io/hostname, operator: In, values: [%s]}
`

// start makes the objects, and the controllers' program if this is the first time, and a speaker on every candidate.
func (l *ironlb) start(ctx context.Context) error {
	l.ending = map[*lab.Node]chan error{}
	if err := l.b.control(ctx); err != nil {
		return err
	}
	for _, n := range l.b.nodes {
		if err := l.startOn(ctx, n); err != nil {
			return err
		}
	}
	for i := range l.b.o.addresses {
		addr, err := l.service(ctx, fmt.Sprintf("%s-%d", l.family, i+1))
		if err != nil {
			return err
		}
		l.held = append(l.held, addr)
	}
	return nil
}

// control starts ironlb-ccm, once in a lab.
func (b *bench) control(ctx context.Context) error {
	if b.controlled {
		return nil
	}
	b.controlled = true
	// No election: a copy that loses the API server for some seconds would end, and there is only one.
	if _, err := b.c.StartCCM(ctx, "--leader-elect=false"); err != nil {
		return err
	}
	var names []string
	for _, n := range b.nodes {
		names = append(names, n.Name)
	}
	if err := b.c.ApplyYAML(ctx, fmt.Sprintf(objects, lab.FreeRange, lab.FreeRange6, strings.Join(names, ", "))); err != nil {
		return err
	}
	_, err := b.c.AddPod(ctx, lab.PodSpec{Name: "bench", Node: b.c.Node(candidates), Labels: map[string]string{"app": "bench"}})
	return err
}

// service makes a Service, if it is not there from the profile before, and returns its address.
func (l *ironlb) service(ctx context.Context, name string) (addr netip.Addr, err error) {
	family := corev1.IPv4Protocol
	if l.family == "ipv6" {
		family = corev1.IPv6Protocol
	}
	services := l.b.c.Kube.CoreV1().Services(metav1.NamespaceDefault)
	_, err = services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "bench"},
			IPFamilies: []corev1.IPFamily{family},
			// After an outage of the API server Kubernetes holds every node, and so the Pod, for not ready until it has heard of them.
			PublishNotReadyAddresses: true,
			Ports: []corev1.ServicePort{
				{Name: "udp", Port: servicePortUDP, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(probe.PortUDP)},
				{Name: "tcp", Port: servicePortTCP, TargetPort: intstr.FromInt32(probe.PortStream)},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return addr, fmt.Errorf("make Service %s: %w", name, err)
	}
	err = l.b.c.Eventually(ctx, time.Minute, "Service "+name+" has an address", func(ctx context.Context) error {
		svc, err := services.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(svc.Status.LoadBalancer.Ingress) != 1 {
			return fmt.Errorf("it has %d", len(svc.Status.LoadBalancer.Ingress))
		}
		addr, err = netip.ParseAddr(svc.Status.LoadBalancer.Ingress[0].IP)
		return err
	})
	return addr, err
}

func (l *ironlb) startOn(ctx context.Context, n *lab.Node) error {
	if ending := l.ending[n]; ending != nil {
		delete(l.ending, n)
		if err := <-ending; err != nil {
			return err
		}
	}
	config := filepath.Join(l.b.c.Dir, "speaker-"+l.profile+".yaml")
	if err := os.WriteFile(config, []byte("dataplane: nftables\n"+l.settings()), 0o600); err != nil {
		return fmt.Errorf("configure the speaker: %w", err)
	}
	return n.StartSpeaker(ctx, "--config", config)
}

func (l *ironlb) settings() string {
	if l.profile == "standard" {
		return "" // the default
	}
	return fmt.Sprintf("failover: {profile: %s}\n", l.profile)
}

func (l *ironlb) stop(context.Context) error {
	var errs []error
	for _, n := range l.b.nodes {
		errs = append(errs, n.StopSpeaker())
	}
	return errors.Join(errs...)
}

func (l *ironlb) signal(n *lab.Node, s syscall.Signal) error {
	switch s {
	case syscall.SIGKILL:
		return n.KillSpeaker()
	case syscall.SIGTERM:
		ended := make(chan error, 1)
		l.ending[n] = ended
		go func() { ended <- n.StopSpeaker() }()
		return nil
	}
	return n.Speaker().Signal(s)
}

func (l *ironlb) ready(ctx context.Context, n *lab.Node) error {
	_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7473/readyz")
	return err
}

func (l *ironlb) has(string) bool { return true }

func (l *ironlb) addrs() []netip.Addr { return l.held }

func (l *ironlb) target(addr netip.Addr) steady.Target {
	return steady.Target{UDP: netip.AddrPortFrom(addr, servicePortUDP), TCP: netip.AddrPortFrom(addr, servicePortTCP)}
}
