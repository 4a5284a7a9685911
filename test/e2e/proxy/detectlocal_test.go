package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// kube-proxy's detectLocalMode: the address of a Pod outside of all Nodes' podCIDRs is kept or masqueraded according to
// the mode.
func TestDetectLocalMode(t *testing.T) {
	rare.Test(t)
	foreign := netip.MustParseAddr("100.64.7.2") // as assigned by a network plugin with its own range
	node, pod := cluster.Node(0), podMachine(t, "a1")
	svc := service(t, "seen", ofType(corev1.ServiceTypeClusterIP))
	endpoints(t, "seen", "c1")
	to := internal(t, svc, httpPort)
	onMachine(t, pod, fmt.Sprintf("ip address add %v/32 dev eth0", foreign),
		fmt.Sprintf("ip route add %v via %v src %v", to.Addr(), node.PodCIDR.Addr().Next(), foreign))
	onMachine(t, &node.Machine, fmt.Sprintf("ip route add %v dev pods0", foreign))
	for _, other := range cluster.Nodes[1:] {
		onMachine(t, &other.Machine, fmt.Sprintf("ip route add %v via %v", foreign, node.Addr))
	}
	standard, err := os.ReadFile(speakerConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { withConfig(t, node, string(standard)) })
	for _, c := range []struct {
		lines string
		kept  bool
	}{
		{"", false},
		{"podCIDRs: [100.64.0.0/10]\n", true},
		{"detectLocalMode: ClusterCIDR\npodCIDRs: [10.0.0.0/8]\n", false},
		{"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: pods0}\n", true},
		{"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n", false},
		{"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: pod}\n", true},
		{"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}\n", false},
	} {
		withConfig(t, node, string(standard)+c.lines)
		want := node.Addr
		if c.kept {
			want = foreign
		}
		cluster.Await(t, 30*time.Second, fmt.Sprintf("with %q c1 sees %v", c.lines, want), func(ctx context.Context) error {
			s, err := pod.Ask(ctx, lab.Probe{
				Network: "tcp", Target: to, Count: 4, Every: 20 * time.Millisecond, Timeout: 3 * time.Second,
			})
			if err == nil && (s.Failed > 0 || s.Clients[want.String()] != s.Sent) {
				err = fmt.Errorf("%s, seen %v", s, s.Clients)
			}
			return err
		})
	}
}

// A local Pod that the mode does not cover causes a condition of the node that names the setting, until the mode is
// changed.
func TestPodsNotCovered(t *testing.T) {
	rare.Test(t)
	node := cluster.Node(0)
	service(t, "foreign", ofType(corev1.ServiceTypeClusterIP))
	slices := cluster.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	if _, err := slices.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "foreign", Labels: map[string]string{discoveryv1.LabelServiceName: "foreign"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)},
		},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"100.64.9.2"}, NodeName: &node.Name}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	onMachine(t, &node.Machine, "ip route add 100.64.9.2 dev pods0")
	standard, err := os.ReadFile(speakerConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slices.Delete(context.Background(), "foreign", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		withConfig(t, node, string(standard))
	})
	const path = "{.status.conditions[?(@.type=='PodTrafficDetected')]}"
	is := func(words ...string) {
		t.Helper()
		cluster.Await(t, time.Minute, fmt.Sprintf("PodTrafficDetected has %q", words), func(ctx context.Context) error {
			out, err := cluster.Kubectl(ctx, "get", "speakerstatus", node.Name, "-o", "jsonpath="+path)
			for _, part := range words {
				if err == nil && !strings.Contains(out, part) {
					err = fmt.Errorf("it is %q", out)
				}
			}
			return err
		})
	}
	is(`"status":"False"`, "PodsNotCovered", "100.64.9.2", "detectLocal.bridgeInterface: pods0")
	withConfig(t, node, string(standard)+"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: pods0}\n")
	is(`"status":"True"`, "BridgeInterface")
}

// withConfig restarts the speaker of a node with another configuration.
func withConfig(t *testing.T, node *lab.Node, text string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	path := t.TempDir() + "/speaker.yaml"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := node.KillSpeaker(); err != nil {
		t.Fatal(err)
	}
	if err := node.StartSpeaker(ctx, "--config", path); err != nil {
		t.Fatal(err)
	}
	if err := node.SpeakerReady(ctx); err != nil {
		t.Fatal(err)
	}
}

func onMachine(t *testing.T, m *lab.Machine, commands ...string) {
	t.Helper()
	for _, command := range commands {
		if _, err := m.Exec(t.Context(), strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
}
