package kube

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/plan"
)

var compareAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func ours(change func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", CreationTimestamp: metav1.Unix(100, 0),
			Annotations: map[string]string{v1alpha1.AnnotationAllocatedFrom: "main, other", "more": "text"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer,
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80},
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
			},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: "203.0.113.4", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)},
			{IP: "203.0.113.5", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)},
		}}},
	}
	if change != nil {
		change(svc)
	}
	return svc
}

func TestService(t *testing.T) {
	want := plan.Service{
		Addresses: []plan.Address{
			{IP: netip.MustParseAddr("203.0.113.4"), Pool: "main"},
			{IP: netip.MustParseAddr("203.0.113.5"), Pool: "other"},
		},
		Ports:   []plan.Port{{Name: "http", Protocol: ipvs.TCP, Port: 80}, {Name: "dns", Protocol: ipvs.UDP, Port: 53}},
		Created: 100,
	}
	with := func(change func(*plan.Service)) *plan.Service { s := want; change(&s); return &s }
	tests := map[string]struct {
		change func(*corev1.Service)
		want   *plan.Service // nil: not ours
	}{
		"plain":                    {nil, &want},
		"not of type LoadBalancer": {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }, nil},
		"allocated by another":     {func(s *corev1.Service) { s.Annotations = nil }, nil},
		"no address yet":           {func(s *corev1.Service) { s.Status = corev1.ServiceStatus{} }, nil},
		"being deleted":            {func(s *corev1.Service) { s.DeletionTimestamp = ptr.To(metav1.Unix(200, 0)) }, nil},
		"kube-proxy forwards all": {func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress[0].IPMode = nil
			s.Status.LoadBalancer.Ingress[1].IPMode = ptr.To(corev1.LoadBalancerIPModeVIP)
		}, nil},
		"kube-proxy forwards the first": {
			func(s *corev1.Service) {
				s.Status.LoadBalancer.Ingress[0].IPMode = ptr.To(corev1.LoadBalancerIPModeVIP)
			},
			with(func(s *plan.Service) { s.Addresses = s.Addresses[1:] }),
		},
		"host name": {
			func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[1] = corev1.LoadBalancerIngress{Hostname: "x"} },
			with(func(s *plan.Service) { s.Addresses = s.Addresses[:1] }),
		},
		"policy Local": {
			func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
			with(func(s *plan.Service) { s.Local = true }),
		},
		"affinity": {
			func(s *corev1.Service) {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](60)}}
			},
			with(func(s *plan.Service) { s.Affinity = 60 }),
		},
		"affinity, default time-out": {
			func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			with(func(s *plan.Service) { s.Affinity = 10800 }),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, trimmed := range []bool{false, true} {
				svc := ours(tt.change)
				if trimmed {
					if _, err := trim(svc); err != nil {
						t.Fatal(err)
					}
				}
				got, ok := serviceOf(svc)
				if ok != (tt.want != nil) {
					t.Fatalf("ours: %v, want %v", ok, tt.want != nil)
				}
				if ok {
					if diff := cmp.Diff(*tt.want, got, compareAddrs); diff != "" {
						t.Errorf("trimmed %v (-want +got):\n%s", trimmed, diff)
					}
				}
			}
		})
	}
}

func TestSlice(t *testing.T) {
	endpoint := func(addr string, c discoveryv1.EndpointConditions) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{addr, "192.0.2.99"}, NodeName: ptr.To("a"), Conditions: c, Zone: ptr.To("z")}
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web", "more": "text"}},
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("http"), Port: ptr.To[int32](8080)},
			{Name: ptr.To("dns"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To[int32](5353)},
			{Port: ptr.To[int32](1)},
			{Name: ptr.To("none")},
			{Name: ptr.To("zero"), Port: ptr.To[int32](0)},
		},
		Endpoints: []discoveryv1.Endpoint{
			endpoint("192.0.2.10", discoveryv1.EndpointConditions{}),
			endpoint("192.0.2.11", discoveryv1.EndpointConditions{Ready: ptr.To(false)}),
			endpoint("192.0.2.12", discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false), Terminating: ptr.To(true)}),
			{Addresses: []string{"2001:db8::10"}},
			{Addresses: []string{"pod.example"}},
			{},
		},
	}
	want := plan.Slice{
		Ports: []plan.Port{{Name: "http", Protocol: ipvs.TCP, Port: 8080}, {Name: "dns", Protocol: ipvs.UDP, Port: 5353}},
		Endpoints: []plan.Endpoint{
			{Addr: netip.MustParseAddr("192.0.2.10"), Node: "a", Ready: true, Serving: true},
			{Addr: netip.MustParseAddr("192.0.2.11"), Node: "a", Serving: true},
			{Addr: netip.MustParseAddr("192.0.2.12"), Node: "a", Terminating: true},
			{Addr: netip.MustParseAddr("2001:db8::10"), Ready: true, Serving: true},
		},
	}
	for _, trimmed := range []bool{false, true} {
		if trimmed {
			if _, err := trim(slice); err != nil {
				t.Fatal(err)
			}
		}
		r, got := convertSlice(slice)
		if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
			t.Errorf("trimmed %v (-want +got):\n%s", trimmed, diff)
		}
		if r.key.String() != "default/web" || r.slice != "web-1" {
			t.Errorf("trimmed %v: filed under %+v", trimmed, r)
		}
	}
}

func TestNode(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"zone": "z"}}}
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		}
		change(n)
		return n
	}
	tests := map[string]struct {
		change func(*corev1.Node)
		ready  bool
	}{
		"ready":         {func(*corev1.Node) {}, true},
		"not ready":     {func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse }, false},
		"unknown":       {func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionUnknown }, false},
		"no condition":  {func(n *corev1.Node) { n.Status.Conditions = nil }, false},
		"being deleted": {func(n *corev1.Node) { n.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, trimmed := range []bool{false, true} {
				n := node(tt.change)
				if trimmed {
					if _, err := trim(n); err != nil {
						t.Fatal(err)
					}
				}
				if got := nodeOf(n); got.Ready != tt.ready || got.Labels["zone"] != "z" {
					t.Errorf("trimmed %v: %+v, want ready %v", trimmed, got, tt.ready)
				}
			}
		})
	}
}

func TestAdvertisement(t *testing.T) {
	ad := &v1alpha1.L2Advertisement{Spec: v1alpha1.L2AdvertisementSpec{
		IPAddressPools: []string{"main"},
		Interfaces:     []string{"eth0"},
		NodeSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{"b": "2", "a": "1"}},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "c", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"3"}}}},
			{},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "c", Operator: metav1.LabelSelectorOpNotIn}}}, // cannot be read: matches nothing
		},
	}}
	want := plan.Advertisement{
		Pools: []string{"main"}, Interfaces: []string{"eth0"},
		Nodes: []pools.Selector{
			{{Key: "a", Operator: pools.In, Values: []string{"1"}}, {Key: "b", Operator: pools.In, Values: []string{"2"}}},
			{{Key: "c", Operator: pools.NotIn, Values: []string{"3"}}},
			{},
			{{}},
		},
	}
	if diff := cmp.Diff(want, advertisementOf(ad)); diff != "" {
		t.Error(diff)
	}
}

func TestVIP(t *testing.T) {
	vip := &v1alpha1.VirtualIP{
		Spec: v1alpha1.VirtualIPSpec{
			Addresses: []string{"203.0.113.4", "2001:db8::4"}, Nodes: []string{"b", "a"},
			Services: []v1alpha1.ServiceReference{{Namespace: "default", Name: "web"}},
		},
		Status: v1alpha1.VirtualIPStatus{Node: "c"},
	}
	want := plan.VIP{
		Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("2001:db8::4")},
		Services:  []pools.ServiceKey{{Namespace: "default", Name: "web"}},
		Nodes:     []string{"b", "a"},
		Holder:    "c",
	}
	if diff := cmp.Diff(want, vipOf(vip), compareAddrs); diff != "" {
		t.Errorf("VIP (-want +got):\n%s", diff)
	}
}
