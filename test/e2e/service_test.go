package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
)

const (
	httpPort   = 80
	udpPort    = 53
	streamPort = 90

	patience = time.Minute // timeout on a busy machine, also with an emulated guest
)

// service creates a Service of type LoadBalancer for the Pods with the label app=name, and deletes it at the end of the
// test.
func service(t testing.TB, name string, edit ...func(*corev1.Service)) {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeLoadBalancer,
			Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: httpPort, TargetPort: intstr.FromInt32(probe.PortHTTP)},
				{Name: "udp", Port: udpPort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(probe.PortUDP)},
				{Name: "stream", Port: streamPort, TargetPort: intstr.FromInt32(probe.PortStream)},
			},
		},
	}
	for _, e := range edit {
		e(svc)
	}
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	if _, err := services.Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteService(t, name) })
}

// deleteService deletes a Service and waits until it is gone: its finalizer is removed when its address is free.
func deleteService(t testing.TB, name string) {
	t.Helper()
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	cluster.Await(t, patience, "Service "+name+" is gone", func(ctx context.Context) error {
		if err := services.Delete(ctx, name, metav1.DeleteOptions{}); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		return errors.New("it is still there")
	})
}

// pods creates n Pods with the label app=name, distributed evenly over the nodes, and removes them at the end.
func pods(t testing.TB, name string, n int) {
	t.Helper()
	for i := range n {
		pod(t, fmt.Sprintf("%s-%d", name, i+1), name, cluster.Node(i%len(cluster.Nodes)))
	}
}

func pod(t testing.TB, name, app string, node *lab.Node) {
	t.Helper()
	_, err := cluster.AddPod(t.Context(), lab.PodSpec{Name: name, Node: node, Labels: map[string]string{"app": app}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.RemovePod(context.Background(), metav1.NamespaceDefault, name); err != nil {
			t.Error(err)
		}
	})
}

// address waits for the Service's EXTERNAL-IP.
func address(t testing.TB, name string) netip.Addr {
	t.Helper()
	var addr netip.Addr
	cluster.Await(t, patience, "Service "+name+" has an address", func(ctx context.Context) error {
		ingress, err := ingressOf(ctx, name)
		if err != nil {
			return err
		}
		if len(ingress) != 1 {
			return fmt.Errorf("its status lists %d addresses", len(ingress))
		}
		if mode := ingress[0].IPMode; mode == nil || *mode != corev1.LoadBalancerIPModeProxy {
			return fmt.Errorf("its ipMode is %v, want Proxy", mode)
		}
		addr, err = netip.ParseAddr(ingress[0].IP)
		return err
	})
	return addr
}

func ingressOf(ctx context.Context, name string) ([]corev1.LoadBalancerIngress, error) {
	svc, err := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return svc.Status.LoadBalancer.Ingress, nil
}

// owner waits until a node that satisfies ok is the owner, by the VirtualIP's status.
func owner(t testing.TB, addr netip.Addr, what string, ok func(node string) bool) *lab.Node {
	t.Helper()
	var node string
	cluster.Await(t, patience, fmt.Sprintf("%s answers for %s", what, addr), func(ctx context.Context) error {
		var vip v1alpha1.VirtualIP
		if err := cluster.Objects.Get(ctx, types.NamespacedName{Name: addr.String()}, &vip); err != nil {
			return err
		}
		for _, c := range vip.Status.Conditions {
			if c.Type == v1alpha1.ConditionAnnounced && c.Status == metav1.ConditionTrue && ok(vip.Status.Node) {
				node = vip.Status.Node
				return nil
			}
		}
		return fmt.Errorf("its status is %+v, its nodes %v", vip.Status, vip.Spec.Nodes)
	})
	return cluster.NodeByName(node)
}

func anyNode(node string) bool { return node != "" }

// ask sends requests from the client, one after the other, and checks that all are answered.
func ask(t *testing.T, from *lab.Machine, network string, at netip.AddrPort, count int) probe.Summary {
	t.Helper()
	s, err := from.Ask(t.Context(), lab.Probe{Network: network, Target: at, Count: count, Every: 5 * time.Millisecond, Timeout: lab.Lost, Serial: true})
	if err != nil {
		t.Fatal(err)
	}
	if s.Failed > 0 || s.Sent != count {
		t.Errorf("%s to %s from %s: %s", network, at, from.Name, s)
	}
	return s
}

// reachable waits for the first answer.
func reachable(t testing.TB, from *lab.Machine, at netip.AddrPort) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("%s is reachable from %s", at, from.Name), func(ctx context.Context) error {
		s, err := from.Ask(ctx, lab.Probe{Network: "tcp", Target: at, Count: 1, Timeout: 3 * time.Second})
		if err == nil && s.Failed > 0 {
			err = errors.New(s.String())
		}
		return err
	})
}

// refused waits until the client's connections to a port are refused. While the owner gets no processor time it does not
// answer ARP.
func refused(t testing.TB, at netip.AddrPort) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("connections to %s are refused", at), func(ctx context.Context) error {
		s, err := cluster.Client.Ask(ctx, lab.Probe{Network: "tcp", Target: at, Count: 1, Timeout: lab.Lost})
		switch {
		case err != nil:
			return err
		case s.Failed == 0:
			t.Fatalf("%s answers: %v", at, s)
		case !contains(s.String(), "refused"):
			return errors.New(s.String())
		}
		return nil
	})
}

// TestService is the main function: an address of the pool, one owner, answers from every Pod, over TCP and UDP.
func TestService(t *testing.T) {
	pods(t, "web", 2)
	service(t, "web")
	addr := address(t, "web")
	if !netip.MustParsePrefix("192.0.2.128/28").Contains(addr) {
		t.Errorf("address %s is not of the pool", addr)
	}
	node := owner(t, addr, "a node", anyNode)
	http := netip.AddrPortFrom(addr, httpPort)
	reachable(t, cluster.Client, http)

	for _, from := range []*lab.Machine{cluster.Client, cluster.Remote} {
		for network, port := range map[string]uint16{"tcp": httpPort, "udp": udpPort} {
			s := ask(t, from, network, netip.AddrPortFrom(addr, port), 20)
			if s.ByPod["web-1"] == 0 || s.ByPod["web-2"] == 0 {
				t.Errorf("%s from %s: not both Pods answered: %s", network, from.Name, s)
			}
			// Policy Cluster: the Pod sees the owner, not the client.
			if s.Clients[from.Addr.String()] > 0 {
				t.Errorf("%s from %s: the Pod saw the client's address although the policy is Cluster: %v", network, from.Name, s.Clients)
			}
		}
	}

	t.Run("only the owner answers ARP", func(t *testing.T) {
		out, err := cluster.Client.Exec(t.Context(), "arping", "-c", "5", "-w", "5", "-i", "eth0", addr.String())
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		mac, err := node.Exec(t.Context(), "cat", "/sys/class/net/eth0/address")
		if err != nil {
			t.Fatal(err)
		}
		if got := arpingMACs(out); len(got) != 1 || !got[trim(mac)] {
			t.Errorf("answers from %v, want only %s:\n%s", got, trim(mac), out)
		}
	})
	t.Run("ping is answered", func(t *testing.T) {
		if _, err := cluster.Client.Exec(t.Context(), "ping", "-c", "1", "-W", "5", addr.String()); err != nil {
			t.Error(err)
		}
	})
	t.Run("an unlisted port is refused", func(t *testing.T) {
		refused(t, netip.AddrPortFrom(addr, 81))
	})
	t.Run("the nodes' own port is not reachable through the address", func(t *testing.T) {
		listens, err := node.Start(t.Context(), "listener", listener(cluster.Program("labpod")))
		if err != nil {
			t.Fatal(err)
		}
		defer listens.Kill()
		reachable(t, cluster.Client, netip.AddrPortFrom(node.Addr, probe.PortHTTP))
		refused(t, netip.AddrPortFrom(addr, probe.PortHTTP))
	})
	t.Run("deleting it takes everything away", func(t *testing.T) {
		deleteService(t, "web")
		for _, n := range cluster.Nodes {
			cluster.Await(t, patience, "nothing of "+addr.String()+" is left on "+n.Name, func(ctx context.Context) error { return absent(ctx, n, addr) })
		}
		cluster.Await(t, patience, "the VirtualIP is gone", func(ctx context.Context) error {
			err := cluster.Objects.Get(ctx, types.NamespacedName{Name: addr.String()}, &v1alpha1.VirtualIP{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there: %w", err)
		})
	})
}

// TestEndpointsFollow: an unready Pod receives nothing; without a ready Pod connections are refused; a Pod that is
// ready again serves.
func TestEndpointsFollow(t *testing.T) {
	pods(t, "follow", 2)
	service(t, "follow")
	http := netip.AddrPortFrom(address(t, "follow"), httpPort)
	reachable(t, cluster.Client, http)

	setReady := func(pod string, ready bool) {
		t.Helper()
		if err := cluster.SetPodReady(t.Context(), metav1.NamespaceDefault, pod, ready); err != nil {
			t.Fatal(err)
		}
	}
	answers := func(want string) {
		t.Helper()
		cluster.Await(t, patience, "answers come from "+want, func(ctx context.Context) error {
			s, err := cluster.Client.Ask(ctx, lab.Probe{Network: "tcp", Target: http, Count: 6, Every: 5 * time.Millisecond, Timeout: 5 * time.Second, Serial: true})
			if err != nil {
				return err
			}
			got := ""
			for _, p := range []string{"follow-1", "follow-2"} {
				if s.ByPod[p] > 0 {
					got += p + " "
				}
			}
			if s.Failed > 0 && contains(s.String(), "refused") {
				got += "refused "
			} else if s.Failed > 0 {
				got += s.String()
			}
			if got != want+" " {
				return fmt.Errorf("they come from: %s", got)
			}
			return nil
		})
	}
	answers("follow-1 follow-2")
	setReady("follow-1", false)
	answers("follow-2")
	setReady("follow-2", false)
	answers("refused")
	setReady("follow-1", true)
	answers("follow-1")
	setReady("follow-2", true)
	answers("follow-1 follow-2")
}

// TestPolicyLocal: the client's address is kept, and only a node with an endpoint of the ports answers.
func TestPolicyLocal(t *testing.T) {
	pod(t, "local-1", "local", cluster.Node(2))
	portless(t, "local", cluster.Node(0), cluster.Node(1))
	service(t, "local", func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	addr := address(t, "local")
	owner(t, addr, cluster.Node(2).Name, func(n string) bool { return n == cluster.Node(2).Name })
	http := netip.AddrPortFrom(addr, httpPort)
	for _, from := range []*lab.Machine{cluster.Client, cluster.Remote} {
		reachable(t, from, http)
		s := ask(t, from, "tcp", http, 5)
		if s.Clients[from.Addr.String()] != 5 {
			t.Errorf("the Pod saw %v, want only %s", s.Clients, from.Addr)
		}
	}
	t.Run("the address follows the endpoint", func(t *testing.T) {
		pod(t, "local-2", "local", cluster.Node(0))
		if err := cluster.SetPodReady(t.Context(), metav1.NamespaceDefault, "local-1", false); err != nil {
			t.Fatal(err)
		}
		owner(t, addr, cluster.Node(0).Name, func(n string) bool { return n == cluster.Node(0).Name })
		reachable(t, cluster.Client, http)
	})
}

// portless creates a slice of endpoints on these nodes without ports, as for Pods that lack the named ports.
func portless(t testing.TB, service string, nodes ...*lab.Node) {
	t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-portless", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, n := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("198.51.100.%d", 250+i)}, NodeName: &n.Name})
	}
	slices := cluster.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	if _, err := slices.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slices.Delete(context.Background(), slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestRefusedRequests: a Service with an invalid request stays unchanged, with one Warning that gives the reason.
func TestRefusedRequests(t *testing.T) {
	service(t, "first")
	taken := address(t, "first")

	for name, tc := range map[string]struct {
		ask, want string
	}{
		"outside": {"203.0.113.1", "203.0.113.1"},
		"taken":   {taken.String(), "default/first"},
		"garbled": {"192.0.2.300", "192.0.2.300"},
	} {
		t.Run(name, func(t *testing.T) {
			service(t, name, func(svc *corev1.Service) { svc.Annotations = map[string]string{v1alpha1.AnnotationAddresses: tc.ask} })
			warning := oneWarning(t, name)
			if !contains(warning, tc.want) {
				t.Errorf("the Warning is %q, it does not mention %q", warning, tc.want)
			}
			if ingress, err := ingressOf(t.Context(), name); err != nil || len(ingress) != 0 {
				t.Errorf("status lists %v (%v), want nothing", ingress, err)
			}
		})
	}

	t.Run("too large", func(t *testing.T) { // 308 kB, and 4,000,000 elements of the packet filter
		pods(t, "first", 1)
		service(t, "large", func(svc *corev1.Service) {
			svc.Spec.AllocateLoadBalancerNodePorts, svc.Spec.Ports = ptr.To(false), nil
			for i := range 2000 {
				svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(2*i + 1)})
				svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, fmt.Sprintf("10.%d.%d.0/24", i>>7, i<<1&255))
			}
		})
		address(t, "large")
		const want = "its ports (2000) times its source ranges (2000) and addresses are more than 8192"
		if warning := oneWarning(t, "large"); !strings.Contains(warning, want) {
			t.Errorf("the Warning is %q, want %q", warning, want)
		}
		cluster.Await(t, patience, "the condition of Service large", func(ctx context.Context) error {
			svc, err := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "large", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c := meta.FindStatusCondition(svc.Status.Conditions, "ironlb.io/Warnings"); c == nil || c.Reason != "TooLarge" || !strings.Contains(c.Message, want) {
				return fmt.Errorf("it is %+v", c)
			}
			return nil
		})
		reachable(t, cluster.Client, netip.AddrPortFrom(taken, httpPort)) // the speakers go on
	})

	t.Run("one that holds an address keeps it", func(t *testing.T) {
		service(t, "holds")
		held := address(t, "holds")
		svc, err := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "holds", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		before := svc.DeepCopy()
		svc.Annotations[v1alpha1.AnnotationAddresses] = taken.String()
		if err := cluster.Objects.Patch(t.Context(), svc, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		if warning := oneWarning(t, "holds"); !contains(warning, "default/first") {
			t.Errorf("the Warning is %q, it does not name the holder", warning)
		}
		if got := address(t, "holds"); got != held {
			t.Errorf("it has %s now, had %s", got, held)
		}
	})
}

// oneWarning waits for the Warning about a Service's address and returns its message. There must be exactly one, with
// count 1. The API server's Warnings about ClusterIPs and node ports do not count: it may find these before their
// Service.
func oneWarning(t *testing.T, name string) string {
	t.Helper()
	var message string
	cluster.Await(t, patience, "a Warning for Service "+name, func(ctx context.Context) error {
		events, err := cluster.Kube.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Service,involvedObject.name=" + name + ",type=Warning,source!=ipallocator-repair-controller,source!=portallocator-repair-controller",
		})
		if err != nil {
			return err
		}
		if len(events.Items) == 0 {
			return errors.New("none yet")
		}
		message = events.Items[0].Message
		if len(events.Items) != 1 || events.Items[0].Count > 1 {
			t.Errorf("want one Warning, once; got %d, the first %d times: %q", len(events.Items), events.Items[0].Count, message)
		}
		return nil
	})
	return message
}

// TestPoolValidation: the API server refuses every malformed object, with the field and the fix, and accepts similar
// valid ones.
func TestPoolValidation(t *testing.T) { testPoolValidation(t, cluster.Objects) }

// TestSharedAddress: a Service of IronLB's class shares the address of one without a class. The client reaches both,
// and they are one unit with one owner.
func TestSharedAddress(t *testing.T) {
	share := func(svc *corev1.Service) { svc.Annotations = map[string]string{"ironlb.io/sharing-key": "shared"} }
	pods(t, "share-a", 2)
	pods(t, "share-b", 1)
	service(t, "share-a", share)
	addr := address(t, "share-a")
	service(t, "share-b", share, func(svc *corev1.Service) {
		svc.Spec.LoadBalancerClass = ptr.To("ironlb.io/lb")
		svc.Spec.Ports = []corev1.ServicePort{{Name: "alt", Port: 8000, TargetPort: intstr.FromInt32(probe.PortHTTP)}}
	})
	if got := address(t, "share-b"); got != addr {
		t.Fatalf("share-b has %s, want %s as share-a", got, addr)
	}
	for port, name := range map[uint16]string{httpPort: "share-a-", 8000: "share-b-"} {
		at := netip.AddrPortFrom(addr, port)
		reachable(t, cluster.Client, at)
		s := ask(t, cluster.Client, "tcp", at, 6)
		for pod := range s.ByPod {
			if !strings.HasPrefix(pod, name) {
				t.Errorf("%s is answered by %s, not by the Pods %s*: %s", at, pod, name, s)
			}
		}
	}
	cluster.Await(t, patience, "both are of one VirtualIP", func(ctx context.Context) error {
		var vip v1alpha1.VirtualIP
		if err := cluster.Objects.Get(ctx, types.NamespacedName{Name: addr.String()}, &vip); err != nil {
			return err
		}
		if len(vip.Spec.Services) != 2 {
			return fmt.Errorf("it has %v", vip.Spec.Services)
		}
		return nil
	})
}
