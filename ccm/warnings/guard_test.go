package warnings

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

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
		ccmtest.WarnedService("kubeproxys", func(s *v1.Service) { proxied("10.0.0.1")(s); s.Labels = nil }),
		ccmtest.WarnedService("notallowed", proxied("203.0.113.9", "192.0.2.9")),
		ccmtest.WarnedService("dns", proxied("10.96.0.10")),
		ccmtest.WarnedService("router", proxied("192.0.2.254")),
		ccmtest.WarnedService("node", proxied("192.0.2.1")),
		ccmtest.WarnedService("ours", func(s *v1.Service) { s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "203.0.113.4"}} }),
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.249"}}},
		},
	)
	g := newGuard(&Settings{ExternalIPCIDRs: []string{"192.0.2.0/24", "10.0.0.0/8"}})
	node := &v1.Node{ObjectMeta: ccmtest.Named("n1"), Spec: v1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}}}
	network := &networkingv1.ServiceCIDR{ObjectMeta: ccmtest.Named("kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}}
	speaker := &v1alpha1.SpeakerStatus{ObjectMeta: ccmtest.Named("n1"), Status: v1alpha1.SpeakerStatusStatus{
		Gateways: []string{"192.0.2.254"}, Interfaces: []v1alpha1.InterfaceStatus{{Name: "eth0", Subnets: []string{"192.0.2.0/24", "2001:db8::/64", "10.9.0.0/31"}}},
	}}
	withheld := map[pools.Rule]string{}
	g.withhold = func(r pools.Refusal, addrs []netip.Addr) { withheld[r.Rule] = fmt.Sprint(r.Of, addrs) }
	h := g.handler()
	for _, o := range []any{node, network, speaker, &v1alpha1.BGPPeer{ObjectMeta: ccmtest.Named("tor"), Spec: v1alpha1.BGPPeerSpec{PeerAddress: "192.0.2.253"}}} {
		h.OnAdd(o, true)
	}
	if want := map[pools.Rule]string{pools.RuleNode: "n1[192.0.2.1]", pools.RuleGateway: "n1[192.0.2.254]", pools.RulePeer: "tor[192.0.2.253]",
		pools.RuleSubnet: "n1[192.0.2.0 192.0.2.255 2001:db8::]"}; !maps.Equal(withheld, want) {
		t.Errorf("withheld %v, want %v", withheld, want)
	}
	p, stop := startPublisherWith(t, client, g)
	defer stop()
	want := map[string]string{
		"notallowed": "spec.externalIPs[0]: 203.0.113.9 is not used by any node: it is in none of the CIDRs that the cluster's operator allows for external IPs " +
			"(externalIPCIDRs) (rule NotAllowed). Remove it, or ask the operator to allow it",
		"dns":    "spec.externalIPs[0]: 10.96.0.10 is not used by any node: it is in ServiceCIDR kubernetes (rule ServiceCIDR). Choose another one",
		"router": "spec.externalIPs[0]: 192.0.2.254 is not used by any node: it is a gateway of Node n1 (rule Gateway). Choose another one",
	}
	for name := range want {
		p.condition(name, "AddressRefused")
	}
	for range len(want) {
		got := <-p.events
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
	h.OnAdd(&v1.Node{ObjectMeta: ccmtest.Named("n2"), Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "203.0.113.4"}}}}, false)
	p.event("Warning AddressRefused status.loadBalancer: 203.0.113.4 is not used by any node: it is an address of Node n2 (rule NodeAddress). " +
		"Ask the operator to remove it from the IPAddressPool")
	p.condition("ours", "AddressRefused")
	ccmtest.Create(t, client.CoreV1().Services("default"), ccmtest.WarnedService("endpoint", proxied("192.0.2.77")))
	p.condition("endpoint", "")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "pods-1", Labels: map[string]string{discoveryv1.LabelServiceName: "pods"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.77"}}},
	}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(p.ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.event("Warning AddressRefused spec.externalIPs[0]: 192.0.2.77 is not used by any node: it is an endpoint of Service default/pods (rule Endpoint)")
	p.condition("endpoint", "AddressRefused")
	ccmtest.Create(t, client.CoreV1().Services("default"), ccmtest.WarnedService("apiserver", proxied("192.0.2.249")))
	p.event("Warning AddressRefused spec.externalIPs[0]: 192.0.2.249 is not used by any node: it is an address of the API server (rule APIServer)")

	// And back.
	if err := client.DiscoveryV1().EndpointSlices("default").Delete(p.ctx, "pods-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.condition("endpoint", "")
	h.OnDelete(network)
	p.condition("dns", "")
	h.OnUpdate(speaker, &v1alpha1.SpeakerStatus{ObjectMeta: ccmtest.Named("n1")})
	p.condition("router", "")
	for _, name := range []string{"node", "kubeproxys"} {
		p.condition(name, "")
	}
}
