package ccm

import (
	"log/slog"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// TestRefusedAddress: an address that no Service may have is reported by an Event and a condition with the field, the
// rule and the fix. The condition is removed with its cause.
func TestRefusedAddress(t *testing.T) {
	proxied := func(ips ...string) func(*v1.Service) {
		return func(s *v1.Service) {
			s.Spec.Type, s.Spec.ClusterIP, s.Spec.ExternalIPs = v1.ServiceTypeClusterIP, "10.96.0.9", ips
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "ironlb"}
		}
	}
	client := fake.NewClientset(
		warnedService("kubeproxys", func(s *v1.Service) { proxied("10.0.0.1")(s); s.Labels = nil }),
		warnedService("notallowed", proxied("203.0.113.9", "192.0.2.9")),
		warnedService("dns", proxied("10.96.0.10")),
		warnedService("router", proxied("192.0.2.254")),
		warnedService("node", proxied("192.0.2.1")),
		warnedService("ours", func(s *v1.Service) { s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "203.0.113.4"}} }),
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.249"}}},
		},
	)
	g := newGuard(&Settings{ExternalIPCIDRs: []string{"192.0.2.0/24", "10.0.0.0/8"}})
	node := &v1.Node{ObjectMeta: named("n1"), Spec: v1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}}}
	network := &networkingv1.ServiceCIDR{ObjectMeta: named("kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}}
	speaker := &v1alpha1.SpeakerStatus{ObjectMeta: named("n1"), Status: v1alpha1.SpeakerStatusStatus{Gateways: []string{"192.0.2.254"}}}
	h := g.handler()
	for _, o := range []any{node, network, speaker} {
		h.OnAdd(o, true)
	}
	w, stop := startPublisherWith(t, client, g)
	defer stop()
	want := map[string]string{
		"notallowed": "spec.externalIPs[0]: 203.0.113.9 is not used by any node: it is in none of the CIDRs that the cluster's operator allows for external IPs " +
			"(externalIPCIDRs) (rule NotAllowed). Remove it, or ask the operator to allow it",
		"dns":    "spec.externalIPs[0]: 10.96.0.10 is not used by any node: it is in ServiceCIDR kubernetes (rule ServiceCIDR). Choose another one",
		"router": "spec.externalIPs[0]: 192.0.2.254 is not used by any node: it is a gateway of Node n1 (rule Gateway). Choose another one",
	}
	for name := range want {
		w.condition(name, "AddressRefused")
	}
	for range len(want) {
		got := <-w.events
		text, ok := strings.CutPrefix(got, "Warning AddressRefused ")
		found := ""
		for name, message := range want {
			if text == message {
				found = name
			}
		}
		if !ok || found == "" {
			t.Errorf("Event %q", got)
		}
		delete(want, found)
	}

	// An address of a pool that becomes an address of a node, of an endpoint, and of the API server.
	h.OnAdd(&v1.Node{ObjectMeta: named("n2"), Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "203.0.113.4"}}}}, false)
	w.event("Warning AddressRefused status.loadBalancer: 203.0.113.4 is not used by any node: it is an address of Node n2 (rule NodeAddress). " +
		"Ask the operator to remove it from the IPAddressPool")
	w.condition("ours", "AddressRefused")
	create(t, client.CoreV1().Services("default"), warnedService("endpoint", proxied("192.0.2.77")))
	w.condition("endpoint", "")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "pods-1", Labels: map[string]string{discoveryv1.LabelServiceName: "pods"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.77"}}},
	}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(w.ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.event("Warning AddressRefused spec.externalIPs[0]: 192.0.2.77 is not used by any node: it is an endpoint of Service default/pods (rule Endpoint)")
	w.condition("endpoint", "AddressRefused")
	create(t, client.CoreV1().Services("default"), warnedService("apiserver", proxied("192.0.2.249")))
	w.event("Warning AddressRefused spec.externalIPs[0]: 192.0.2.249 is not used by any node: it is an address of the API server (rule APIServer)")

	// And back.
	if err := client.DiscoveryV1().EndpointSlices("default").Delete(w.ctx, "pods-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.condition("endpoint", "")
	h.OnDelete(network)
	w.condition("dns", "")
	h.OnUpdate(speaker, &v1alpha1.SpeakerStatus{ObjectMeta: named("n1")})
	w.condition("router", "")
	for _, name := range []string{"node", "kubeproxys"} {
		w.condition(name, "")
	}
}

// TestReleaseRemovesWarnings: an uninstall removes all warnings, also from a Service that was only served as by a
// proxy.
func TestReleaseRemovesWarnings(t *testing.T) {
	client := fake.NewClientset(warnedService("proxied", func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeClusterIP
		s.Status.Conditions = []metav1.Condition{{Type: conditionWarnings, Status: metav1.ConditionTrue}, {Type: "example.com/Theirs", Status: metav1.ConditionTrue}}
	}), warnedService("plain", nil))
	if err := (Release{Log: slog.New(slog.DiscardHandler)}).services(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	svc, err := client.CoreV1().Services("default").Get(t.Context(), "proxied", metav1.GetOptions{})
	if err != nil || len(svc.Status.Conditions) != 1 || svc.Status.Conditions[0].Type != "example.com/Theirs" {
		t.Errorf("left: %+v, %v", svc.Status.Conditions, err)
	}
	if n := patches(client); n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
}
