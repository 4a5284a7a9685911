package kube

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
)

var comparePrefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

var compareAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func ours(change func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "u", CreationTimestamp: metav1.Unix(100, 0),
			Annotations: map[string]string{v1alpha1.AnnotationAllocatedFrom: "main,other", "more": "text"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer,
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080},
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, NodePort: 30053},
			},
			ClusterIP: "198.51.100.9", ClusterIPs: []string{"198.51.100.9"}, ExternalIPs: []string{"198.51.100.20"},
			Selector: map[string]string{"app": "web"}, LoadBalancerClass: ptr.To("ironlb.io/lb"),
		},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{IP: "203.0.113.4", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)},
				{IP: "203.0.113.5", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)},
			}},
			Conditions: []metav1.Condition{
				{Type: "ironlb.io/Allocated", Status: metav1.ConditionTrue},
				{Type: v1alpha1.ConditionAddresses, Status: metav1.ConditionTrue, Message: "203.0.113.4=main,203.0.113.5=other"},
			},
		},
	}
	if change != nil {
		change(svc)
	}
	return svc
}

const proxyMode, vipMode = corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP

// Addresses of a Service that are served (docs/design/data-plane.md).
func TestAddresses(t *testing.T) {
	others := func(s *corev1.Service) { s.Annotations, s.Status.Conditions = nil, nil }
	label := func(s *corev1.Service, name string) { s.Labels = map[string]string{labelProxy: name, "more": "text"} }
	mode := func(modes ...corev1.LoadBalancerIPMode) func(*corev1.Service) {
		return func(s *corev1.Service) {
			for i, m := range modes {
				s.Status.LoadBalancer.Ingress[i].IPMode = ptr.To(m)
			}
		}
	}
	tests := map[string]struct {
		change           func(*corev1.Service)
		alongside, proxy string // alongside kube-proxy, and as the service proxy
	}{
		"plain":                    {nil, "lb 203.0.113.4@main, lb 203.0.113.5@other", "cluster 198.51.100.9, lb 203.0.113.4@main, lb 203.0.113.5@other, external 198.51.100.20"},
		"not of type LoadBalancer": {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }, "", "cluster 198.51.100.9, external 198.51.100.20"},
		"allocated by another":     {others, "", "cluster 198.51.100.9, external 198.51.100.20"},
		"another's, mode VIP": {func(s *corev1.Service) { others(s); mode(vipMode, vipMode)(s) }, "",
			"cluster 198.51.100.9, foreign 203.0.113.4, foreign 203.0.113.5, external 198.51.100.20"},
		"another's, no mode": {func(s *corev1.Service) { others(s); s.Status.LoadBalancer.Ingress[0].IPMode = nil }, "",
			"cluster 198.51.100.9, foreign 203.0.113.4, external 198.51.100.20"},
		"another's, annotated by its author": {func(s *corev1.Service) { s.Status.Conditions = nil; mode(vipMode, vipMode)(s) },
			"", "cluster 198.51.100.9, foreign 203.0.113.4, foreign 203.0.113.5, external 198.51.100.20"},
		"a condition without the record": {func(s *corev1.Service) {
			s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAllocated}}
		}, "lb 203.0.113.4, lb 203.0.113.5", "cluster 198.51.100.9, lb 203.0.113.4, lb 203.0.113.5, external 198.51.100.20"},
		"annotation changed by its author": {func(s *corev1.Service) { s.Annotations[v1alpha1.AnnotationAllocatedFrom] = "other,other" },
			"lb 203.0.113.4@main, lb 203.0.113.5@other", "cluster 198.51.100.9, lb 203.0.113.4@main, lb 203.0.113.5@other, external 198.51.100.20"},
		"annotation removed by its author": {func(s *corev1.Service) { s.Annotations = nil },
			"lb 203.0.113.4@main, lb 203.0.113.5@other", "cluster 198.51.100.9, lb 203.0.113.4@main, lb 203.0.113.5@other, external 198.51.100.20"},
		"no address yet": {func(s *corev1.Service) { s.Status = corev1.ServiceStatus{} }, "", "cluster 198.51.100.9, external 198.51.100.20"},
		"being deleted":  {func(s *corev1.Service) { s.DeletionTimestamp = ptr.To(metav1.Unix(200, 0)) }, "", "cluster 198.51.100.9, external 198.51.100.20"},
		"kube-proxy forwards all": {mode(vipMode, vipMode), "announce 203.0.113.4@main, announce 203.0.113.5@other",
			"cluster 198.51.100.9, lb 203.0.113.4@main, lb 203.0.113.5@other, external 198.51.100.20"},
		"kube-proxy forwards the first": {mode(vipMode), "announce 203.0.113.4@main, lb 203.0.113.5@other",
			"cluster 198.51.100.9, lb 203.0.113.4@main, lb 203.0.113.5@other, external 198.51.100.20"},
		"host name": {func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[1] = corev1.LoadBalancerIngress{Hostname: "x"} },
			"lb 203.0.113.4@main", "cluster 198.51.100.9, lb 203.0.113.4@main, external 198.51.100.20"},
		"labelled for us": {func(s *corev1.Service) { label(s, "ironlb") },
			"cluster 198.51.100.9, lb 203.0.113.4@main, lb 203.0.113.5@other, external 198.51.100.20",
			"cluster 198.51.100.9, lb 203.0.113.4@main, lb 203.0.113.5@other, external 198.51.100.20"},
		"labelled for another proxy": {func(s *corev1.Service) { label(s, "other") }, "lb 203.0.113.4@main, lb 203.0.113.5@other; other",
			"lb 203.0.113.4@main, lb 203.0.113.5@other; other"},
		"labelled with nothing": {func(s *corev1.Service) { label(s, ""); others(s) }, "; other", "; other"},
		"one address twice": {func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.5", "::ffff:198.51.100.20"} },
			"lb 203.0.113.4@main, lb 203.0.113.5@other", "cluster 198.51.100.9, lb 203.0.113.4@main, lb 203.0.113.5@other, external 198.51.100.20"},
		"headless": {func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, "None", []string{"None"}
			label(s, "ironlb")
		}, "", ""},
		"no ClusterIP": {func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, "", nil
		}, "", ""},
		"external name": {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, proxy := range []bool{false, true} {
				want := tt.alongside
				if proxy {
					want = tt.proxy
				}
				for _, trimmed := range []bool{false, true, true} {
					svc := ours(tt.change)
					if trimmed {
						trimTwice(t, proxy, svc)
					}
					if got := addressText(serviceOf(svc, ServiceOptions{ServiceProxy: proxy})); got != want {
						t.Errorf("service proxy %v, trimmed %v: %q, want %q", proxy, trimmed, got, want)
					}
				}
			}
		})
	}
}

func trimTwice(t *testing.T, proxy bool, svc *corev1.Service) {
	t.Helper()
	for range 2 {
		if _, err := trimService(ServiceOptions{ServiceProxy: proxy})(svc); err != nil {
			t.Fatal(err)
		}
	}
}

func addressText(s served) string {
	var texts []string
	for _, a := range s.service.Addresses {
		kind := map[view.AddressKind]string{view.LoadBalancer: "lb", view.External: "external", view.ClusterIP: "cluster", view.Foreign: "foreign"}[a.Kind]
		if a.AnnounceOnly {
			kind = "announce"
		}
		text := kind + " " + a.IP.String()
		if a.Pool != "" {
			text += "@" + a.Pool
		}
		texts = append(texts, text)
	}
	text := strings.Join(texts, ", ")
	if s.here != (text != "") {
		text += " BUT HERE IS WRONG"
	}
	if s.other {
		text += "; other"
	}
	return text
}

// The fields of a Service other than its addresses.
func TestService(t *testing.T) {
	want := view.Service{
		Ports:    []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 80, NodePort: 30080}, {Name: "dns", Protocol: ipvs.UDP, Port: 53, NodePort: 30053}},
		Families: view.OnlyIPv4, Created: 100,
	}
	with := func(change func(*view.Service)) view.Service { s := want; change(&s); return s }
	annotate := func(key, value string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations[key] = value }
	}
	scheduled := func(name string, flags ipvs.Flags) view.Service {
		return with(func(s *view.Service) { s.Scheduler, s.Flags = name, flags })
	}
	restricted := func(texts ...string) view.Service {
		return with(func(s *view.Service) { s.Restricted, s.Sources = true, prefixes(texts) })
	}
	local := func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 31000
	}
	tests := map[string]struct {
		change func(*corev1.Service)
		want   view.Service
	}{
		"plain":                       {nil, want},
		"policy Local":                {local, with(func(s *view.Service) { s.Local, s.HealthCheckNodePort = true, 31000 })},
		"health check port left over": {func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 31000 }, want},
		"internal policy Local": {func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		},
			with(func(s *view.Service) { s.InternalLocal = true })},
		"internal policy Cluster": {func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
		}, want},
		"dual stack": {func(s *corev1.Service) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "2001:db8::9") },
			with(func(s *view.Service) { s.Families = 0 })},
		"IPv6": {func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "2001:db8::9", []string{"2001:db8::9"} },
			with(func(s *view.Service) { s.Families = view.OnlyIPv6 })},
		"affinity": {func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](60)}}
		}, with(func(s *view.Service) { s.Affinity = 60 })},
		"affinity, default time-out": {func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			with(func(s *view.Service) { s.Affinity = 10800 })},
		"scheduler":         {annotate(v1alpha1.AnnotationScheduler, "wlc"), scheduled("wlc", 0)},
		"mh":                {annotate(v1alpha1.AnnotationScheduler, "mh"), scheduled("mh", ipvs.SchedFallback|ipvs.SchedPort)},
		"sh by port":        {annotate(v1alpha1.AnnotationScheduler, "sh,port"), scheduled("sh", ipvs.SchedPort)},
		"unknown scheduler": {annotate(v1alpha1.AnnotationScheduler, "best"), want},
		"nodeport":          {annotate(v1alpha1.AnnotationForwarding, "nodeport"), with(func(s *view.Service) { s.Forwarding = view.ToNodePort })},
		"nodeport, but a port has none": {func(s *corev1.Service) {
			s.Annotations[v1alpha1.AnnotationForwarding] = "nodeport"
			s.Spec.Ports[1].NodePort = 0
		}, with(func(s *view.Service) {
			s.Ports = []view.Port{want.Ports[0], {Name: "dns", Protocol: ipvs.UDP, Port: 53}}
		})},
		"direct":             {annotate(v1alpha1.AnnotationForwarding, " direct "), with(func(s *view.Service) { s.Forwarding = view.Direct })},
		"unknown forwarding": {annotate(v1alpha1.AnnotationForwarding, "tunnel"), want},
		"ranges": {func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{" 192.0.2.0/24 ", "2001:db8::/32"} },
			restricted("192.0.2.0/24", "2001:db8::/32")},
		"ranges, annotation":            {annotate(v1alpha1.AnnotationSourceRanges, "192.0.2.0/24, x"), restricted("192.0.2.0/24")},
		"ranges, none of them readable": {annotate(v1alpha1.AnnotationSourceRanges, "x"), restricted()},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, proxy := range []bool{false, true} {
				for _, trimmed := range []bool{false, true} {
					svc := ours(tt.change)
					if trimmed {
						trimTwice(t, proxy, svc)
					}
					got := serviceOf(svc, ServiceOptions{ServiceProxy: proxy}).service
					if got.NodePorts != proxy {
						t.Errorf("NodePorts %v, service proxy %v", got.NodePorts, proxy)
					}
					got.Addresses, got.NodePorts = nil, false
					if diff := cmp.Diff(tt.want, got, compareAddrs, comparePrefixes); diff != "" {
						t.Errorf("service proxy %v, trimmed %v (-want +got):\n%s", proxy, trimmed, diff)
					}
				}
			}
		})
	}
}

// A Service that is not served here is trimmed to little.
func TestTrimmedServiceIsSmall(t *testing.T) {
	svc := ours(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeClusterIP
		s.Labels = map[string]string{"more": "text"}
	})
	trimTwice(t, false, svc)
	want := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u", CreationTimestamp: metav1.Unix(100, 0)},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "198.51.100.9"},
	}
	if diff := cmp.Diff(want, svc); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

func TestSlice(t *testing.T) {
	endpoint := func(addr string, c discoveryv1.EndpointConditions) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{addr, "192.0.2.99"}, NodeName: ptr.To("a"), Conditions: c, Zone: ptr.To("z")}
	}
	hinted := endpoint("192.0.2.13", discoveryv1.EndpointConditions{})
	hinted.Hints = &discoveryv1.EndpointHints{
		ForNodes: []discoveryv1.ForNode{{Name: "a"}}, ForZones: []discoveryv1.ForZone{{Name: "y"}, {Name: "z"}},
	}
	slice := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
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
			{Addresses: []string{"198.51.100.7"}},
			hinted,
			{Addresses: []string{"2001:db8::10"}},
			{Addresses: []string{"pod.example"}},
			{},
		},
	}
	want := view.Slice{
		Ports: []view.Port{{Name: "http", Protocol: ipvs.TCP, Port: 8080}, {Name: "dns", Protocol: ipvs.UDP, Port: 5353}},
		Endpoints: []view.Endpoint{
			{Addr: netip.MustParseAddr("192.0.2.10"), Node: "a", Ready: true, Serving: true},
			{Addr: netip.MustParseAddr("192.0.2.11"), Node: "a", Serving: true},
			{Addr: netip.MustParseAddr("192.0.2.12"), Node: "a", Terminating: true},
			{Addr: netip.MustParseAddr("198.51.100.7"), Ready: true, Serving: true},
			{Addr: netip.MustParseAddr("192.0.2.13"), Node: "a", Ready: true, Serving: true, ForNodes: []string{"a"}, ForZones: []string{"y", "z"}},
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

// A slice with another type than its addresses has none (1.6.2).
func TestSliceType(t *testing.T) {
	for addressType, want := range map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: "192.0.2.10", discoveryv1.AddressTypeIPv6: "2001:db8::10", discoveryv1.AddressTypeFQDN: "",
	} {
		got := sliceOf(&discoveryv1.EndpointSlice{AddressType: addressType, Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"192.0.2.10"}}, {Addresses: []string{"2001:db8::10"}}, {Addresses: []string{"pod.example"}},
		}})
		var texts []string
		for _, e := range got.Endpoints {
			texts = append(texts, e.Addr.String())
		}
		if text := strings.Join(texts, " "); text != want {
			t.Errorf("%s: %q, want %q", addressType, text, want)
		}
	}
}

// TestNodeExcluded: every value of the exclude label except false excludes the node, unless the label is ignored.
func TestNodeExcluded(t *testing.T) {
	for value, want := range map[string]bool{"": true, "true": true, "perhaps": true, "false": false, "0": false} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelNodeExcludeBalancers: value}}}
		if got := nodeOf(n, false).Excluded; got != want {
			t.Errorf("with %q the node is excluded: %v, want %v", value, got, want)
		}
		if nodeOf(n, true).Excluded {
			t.Errorf("with %q the node is excluded although the label is ignored", value)
		}
	}
	if nodeOf(&corev1.Node{}, false).Excluded {
		t.Error("a node without the label is excluded")
	}
}

func TestNode(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"zone": "z"}}}
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "192.0.2.0/26", []string{"192.0.2.0/26", "2001:db8:1::/64"}
		n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}}
		n.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.200"},
			{Type: corev1.NodeInternalIP, Address: "198.51.100.1"}, {Type: corev1.NodeInternalIP, Address: "198.51.100.2"},
			{Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
		}
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
			{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse},
			{Type: corev1.NodeReady, Status: corev1.ConditionFalse},
		}
		change(n)
		return n
	}
	want := view.Node{
		Labels:    map[string]string{"zone": "z"},
		Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")},
		Reached:   []netip.Addr{netip.MustParseAddr("203.0.113.200"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("2001:db8::1")},
		PodCIDRs:  prefixes([]string{"192.0.2.0/26", "2001:db8:1::/64"}),
	}
	with := func(change func(*view.Node)) view.Node { n := want; change(&n); return n }
	tests := map[string]struct {
		change func(*corev1.Node)
		want   view.Node
	}{
		"sound":        {func(*corev1.Node) {}, want},
		"no condition": {func(n *corev1.Node) { n.Status.Conditions = nil }, want},
		"no network": {func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionTrue },
			with(func(n *view.Node) { n.NetworkUnavailable = true })},
		"ready": {func(n *corev1.Node) { n.Status.Conditions[2].Status = corev1.ConditionTrue },
			with(func(n *view.Node) { n.Ready = true })},
		"being deleted": {func(n *corev1.Node) { n.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) },
			with(func(n *view.Node) { n.BeingDeleted = true })},
		"tainted by the autoscaler": {func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: taintLeaving}) },
			with(func(n *view.Node) { n.BeingDeleted = true })},
		"cordoned": {func(n *corev1.Node) { n.Spec.Unschedulable = true },
			with(func(n *view.Node) { n.Stopping = true })},
		"out of service": {func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
		}, with(func(n *view.Node) { n.Stopping = true })},
		"shuts down": {func(n *corev1.Node) {
			ready := &n.Status.Conditions[2]
			ready.Reason, ready.Message = "KubeletNotReady", "[container runtime is down, node is shutting down]"
		}, with(func(n *view.Node) { n.Stopping = true })},
		"has shut down": {func(n *corev1.Node) {
			ready := &n.Status.Conditions[2]
			ready.Status, ready.Reason, ready.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
		}, want},
		"not ready": {func(n *corev1.Node) {
			ready := &n.Status.Conditions[2]
			ready.Reason, ready.Message = "KubeletNotReady", "container runtime network not ready"
		}, want},
		"one range": {func(n *corev1.Node) { n.Spec.PodCIDRs = nil },
			with(func(n *view.Node) { n.PodCIDRs = prefixes([]string{"192.0.2.0/26"}) })},
		"no range": {func(n *corev1.Node) { n.Spec = corev1.NodeSpec{} }, with(func(n *view.Node) { n.PodCIDRs = nil })},
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
				if diff := cmp.Diff(tt.want, nodeOf(n, false), compareAddrs, comparePrefixes); diff != "" {
					t.Errorf("trimmed %v (-want +got):\n%s", trimmed, diff)
				}
			}
		})
	}
}

func TestAdvertisement(t *testing.T) {
	ad := &v1alpha1.L2Advertisement{Spec: v1alpha1.L2AdvertisementSpec{
		IPAddressPools:         []string{"main"},
		Interfaces:             []string{"eth0"},
		IPAddressPoolSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"p": "1"}}},
		ServiceSelectors:       []metav1.LabelSelector{{MatchLabels: map[string]string{"s": "1"}}},
		NodeSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{"b": "2", "a": "1"}},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "c", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"3"}}}},
			{},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "c", Operator: metav1.LabelSelectorOpNotIn}}}, // invalid: matches nothing
		},
	}}
	want := view.Advertisement{
		Pools: []string{"main"}, Interfaces: []string{"eth0"},
		PoolSelectors: []pools.Selector{{{Key: "p", Operator: pools.In, Values: []string{"1"}}}},
		Services:      []pools.Selector{{{Key: "s", Operator: pools.In, Values: []string{"1"}}}},
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
	want := view.VIP{
		Addresses:     []netip.Addr{netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("2001:db8::4")},
		Services:      []pools.ServiceKey{{Namespace: "default", Name: "web"}},
		Nodes:         []string{"b", "a"},
		ReportedOwner: "c",
	}
	if diff := cmp.Diff(want, vipOf(vip), compareAddrs); diff != "" {
		t.Errorf("VIP (-want +got):\n%s", diff)
	}
	for reason, contested := range map[view.Reason]bool{view.AddressConflict: false, view.AnsweredTwice: true} {
		vip.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionTrue, Reason: string(reason)}}
		if got := vipOf(vip).Contested; got != contested {
			t.Errorf("conflict %s: contested is %v", reason, got)
		}
	}
}
