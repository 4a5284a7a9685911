// Package scene sets up and checks Services for tests in a lab: objects are removed at the end of the test, and checks
// wait for the expected answers.
package scene

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
)

var (
	cluster  *lab.Cluster
	podNodes map[string]int
)

// Use sets the package's lab, and the node of each Pod.
func Use(c *lab.Cluster, pods map[string]int) { cluster, podNodes = c, pods }

// UseBoth is Use for Services of both families: every check of an IPv4 address is repeated for its IPv6 twin.
func UseBoth(c *lab.Cluster, pods map[string]int) {
	Use(c, pods)
	both = true
}

// The ports of every Service.
const (
	HTTPPort   = 80
	UDPPort    = 53
	StreamPort = 90
)

// Service creates a Service without a selector and deletes it at the end of the test. Endpoints creates its slices.
func Service(t testing.TB, name string, edit ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer,
			Ports: []corev1.ServicePort{
				{Name: "http", Port: HTTPPort, TargetPort: intstr.FromInt32(probe.PortHTTP)},
				{Name: "udp", Port: UDPPort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(probe.PortUDP)},
				{Name: "stream", Port: StreamPort, TargetPort: intstr.FromInt32(probe.PortStream)},
			},
		},
	}
	if both {
		svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
	for _, e := range edit {
		e(svc)
	}
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	if _, err := services.Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cluster.Await(t, time.Minute, "Service "+name+" is gone", func(ctx context.Context) error {
			if err := services.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
				return errors.Join(err, errors.New("it is still there"))
			}
			return nil
		})
	})
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return Get(t, name)
	}
	return WithAddress(t, name)
}

// Get returns a Service.
func Get(t testing.TB, name string) *corev1.Service {
	t.Helper()
	svc, err := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// WithAddress waits until the Service has its EXTERNAL-IP, one of each of its families.
func WithAddress(t testing.TB, name string) (svc *corev1.Service) {
	t.Helper()
	cluster.Await(t, time.Minute, "Service "+name+" has an address", func(ctx context.Context) error {
		if svc = Get(t, name); len(svc.Status.LoadBalancer.Ingress) != len(svc.Spec.IPFamilies) {
			return fmt.Errorf("its status lists %d addresses", len(svc.Status.LoadBalancer.Ingress))
		}
		return nil
	})
	return svc
}

// Edit changes a Service.
func Edit(t testing.TB, name string, change func(*corev1.Service)) *corev1.Service {
	t.Helper()
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	var svc *corev1.Service
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		if svc, err = services.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		change(svc)
		svc, err = services.Update(t.Context(), svc, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// Policy sets externalTrafficPolicy.
func Policy(p corev1.ServiceExternalTrafficPolicy) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = p }
}

// OfType sets the type.
func OfType(kind corev1.ServiceType) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.Type = kind }
}

// Endpoints sets the Pods of the Service's slices, one slice for each family: "a1", "a1=terminating" (still serving),
// "a1=unready", "a1=gone" (terminating, no longer serving). A suffix "@zone" adds a hint for a zone, "%node" one for a
// node.
func Endpoints(t testing.TB, service string, pods ...string) {
	t.Helper()
	ports := []discoveryv1.EndpointPort{
		{Name: ptr.To("http"), Port: ptr.To[int32](probe.PortHTTP), Protocol: ptr.To(corev1.ProtocolTCP)},
		{Name: ptr.To("udp"), Port: ptr.To[int32](probe.PortUDP), Protocol: ptr.To(corev1.ProtocolUDP)},
		{Name: ptr.To("stream"), Port: ptr.To[int32](probe.PortStream), Protocol: ptr.To(corev1.ProtocolTCP)},
	}
	setSlice(t, service, service, discoveryv1.AddressTypeIPv4, ports, pods)
	if both {
		setSlice(t, service, service+"-ipv6", discoveryv1.AddressTypeIPv6, ports, pods)
	}
}

// PortlessEndpoints sets the Pods of a slice without ports, as the EndpointSlice controller writes for Pods that lack
// the named ports.
func PortlessEndpoints(t testing.TB, service string, pods ...string) {
	t.Helper()
	setSlice(t, service, service+"-portless", discoveryv1.AddressTypeIPv4, nil, pods)
}

func setSlice(t testing.TB, service, name string, family discoveryv1.AddressType, ports []discoveryv1.EndpointPort, pods []string) {
	t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: family,
		Ports:       ports,
		Endpoints:   []discoveryv1.Endpoint{},
	}
	for _, p := range pods {
		slice.Endpoints = append(slice.Endpoints, endpoint(t, family, p))
	}
	slices := cluster.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	_, err := slices.Update(t.Context(), slice, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(t.Context(), slice, metav1.CreateOptions{})
		t.Cleanup(func() {
			err := slices.Delete(context.Background(), name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func endpoint(t testing.TB, family discoveryv1.AddressType, text string) discoveryv1.Endpoint {
	t.Helper()
	text, node, _ := strings.Cut(text, "%")
	text, zone, _ := strings.Cut(text, "@")
	name, state, _ := strings.Cut(text, "=")
	pod := PodMachine(t, name)
	addr := pod.Addr
	if family == discoveryv1.AddressTypeIPv6 {
		addr = pod.Addr6
	}
	e := discoveryv1.Endpoint{
		Addresses: []string{addr.String()},
		NodeName:  ptr.To(cluster.Node(podNodes[name]).Name),
		Conditions: discoveryv1.EndpointConditions{
			Ready:       ptr.To(state == ""),
			Serving:     ptr.To(state == "" || state == "terminating"),
			Terminating: ptr.To(state == "terminating" || state == "gone"),
		},
	}
	if zone != "" {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	if node != "" {
		e.Hints.ForNodes = []discoveryv1.ForNode{{Name: node}} // in addition to zones, as its controller writes it
	}
	return e
}

// PodMachine returns a Pod's machine, to run commands in.
func PodMachine(t testing.TB, name string) *lab.Machine {
	t.Helper()
	m, err := cluster.PodMachine(metav1.NamespaceDefault, name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// External returns the port at the LoadBalancer address, Internal at the ClusterIP, NodePort at a node.
func External(t testing.TB, svc *corev1.Service, port uint16) netip.AddrPort {
	t.Helper()
	for _, in := range svc.Status.LoadBalancer.Ingress[1:] {
		Pair(t, svc.Status.LoadBalancer.Ingress[0].IP, in.IP)
	}
	return At(t, svc.Status.LoadBalancer.Ingress[0].IP, port)
}

// Internal: see External.
func Internal(t testing.TB, svc *corev1.Service, port uint16) netip.AddrPort {
	t.Helper()
	for _, ip := range svc.Spec.ClusterIPs[1:] {
		Pair(t, svc.Spec.ClusterIP, ip)
	}
	return At(t, svc.Spec.ClusterIP, port)
}

// NodePort: see External; name is the name of the port.
func NodePort(t testing.TB, svc *corev1.Service, node *lab.Node, name string) netip.AddrPort {
	t.Helper()
	for _, p := range svc.Spec.Ports {
		if p.Name == name {
			return netip.AddrPortFrom(node.Addr, uint16(p.NodePort))
		}
	}
	t.Fatalf("Service %s has no port %s", svc.Name, name)
	return netip.AddrPort{}
}

// At returns a port of an address.
func At(t testing.TB, addr string, port uint16) netip.AddrPort {
	t.Helper()
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(ip, port)
}

// By routes the client's packets for the address, and its twin, through one node, regardless of its owner.
func By(t testing.TB, client *lab.Machine, addr netip.Addr, node *lab.Node) {
	t.Helper()
	// A node that has not programmed the address yet forwards the packets, and redirects the client to the owner.
	redirects := "for c in /proc/sys/net/ipv[46]/conf/*/accept_redirects; do echo 0 >$c; done"
	if _, err := client.Exec(t.Context(), "sh", "-c", redirects); err != nil {
		t.Fatal(err)
	}
	for _, to := range withTwin(addr) {
		via := node.Addr
		if to.Is6() {
			via = node.Addr6
		}
		route := netip.PrefixFrom(to, to.BitLen()).String()
		if _, err := client.Exec(t.Context(), "ip", "route", "replace", route, "via", via.String()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, _ = client.Exec(context.Background(), "ip", "route", "del", route) // repeated deletions fail
		})
	}
}

// Limits of requests.
const (
	Programmed = 2 * time.Minute // upstream's allowance for a change to reach every node
	PerRound   = 12
)

// Answered waits until the client's requests, of each family, are answered by exactly these Pods, each at least once,
// and returns the last round.
func Answered(t testing.TB, client *lab.Machine, network string, to netip.AddrPort, pods ...string) (s probe.Summary) {
	t.Helper()
	what := fmt.Sprintf("%s to %v from %s is answered by %v", network, to, client.Name, pods)
	cluster.Await(t, Programmed, what, func(ctx context.Context) error {
		p := lab.Probe{Network: network, Target: to, Count: PerRound, Timeout: 3 * time.Second}
		return askEach(ctx, client, p, &s, func(s probe.Summary) bool {
			return s.Failed == 0 && slices.Equal(slices.Sorted(maps.Keys(s.ByPod)), pods)
		})
	})
	return s
}

// askEach sends requests to the target and its twin at once. Each summary must satisfy good; all combines both.
func askEach(
	ctx context.Context, client *lab.Machine, p lab.Probe, all *probe.Summary, good func(probe.Summary) bool,
) error {
	p.Every = 20 * time.Millisecond
	targets := withTwin(p.Target.Addr())
	summaries, errs := make([]probe.Summary, len(targets)), make([]error, len(targets))
	var each sync.WaitGroup
	for i, addr := range targets {
		each.Go(func() {
			p := p
			p.Target = netip.AddrPortFrom(addr, p.Target.Port())
			if summaries[i], errs[i] = client.Ask(ctx, p); errs[i] == nil && !good(summaries[i]) {
				errs[i] = fmt.Errorf("%v: %s", p.Target, summaries[i])
			}
		})
	}
	each.Wait()
	var results []probe.Result
	for _, s := range summaries {
		results = append(results, s.Results...)
	}
	*all = probe.Summarize(results)
	return errors.Join(errs...)
}

// Seen checks that every Pod has seen this client's address, or its twin.
func Seen(t testing.TB, s probe.Summary, client netip.Addr) {
	t.Helper()
	want := withTwin(client)
	for seen := range s.Clients {
		if !slices.ContainsFunc(want, func(a netip.Addr) bool { return a.String() == seen }) {
			t.Errorf("the Pods saw the clients %v, want only %v", s.Clients, want)
		}
	}
	if s.Clients[client.String()] == 0 {
		t.Errorf("the Pods saw the clients %v, want %v", s.Clients, client)
	}
}

// Refused waits until every request is refused at once; Dropped until all time out.
func Refused(t testing.TB, client *lab.Machine, to netip.AddrPort) {
	t.Helper()
	fails(t, client, to, "refused")
}

func Dropped(t testing.TB, client *lab.Machine, to netip.AddrPort) {
	t.Helper()
	fails(t, client, to, "timeout")
}

func fails(t testing.TB, client *lab.Machine, to netip.AddrPort, how string) {
	t.Helper()
	what := fmt.Sprintf("requests to %v from %s fail: %s", to, client.Name, how)
	cluster.Await(t, Programmed, what, func(ctx context.Context) error {
		var all probe.Summary
		p := lab.Probe{Network: "tcp", Target: to, Count: 3, Timeout: 2 * time.Second}
		return askEach(ctx, client, p, &all, func(s probe.Summary) bool {
			return !slices.ContainsFunc(s.Results, func(r probe.Result) bool { return !strings.Contains(r.Error, how) })
		})
	})
}
