package kube

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
)

func TestOurs(t *testing.T) {
	pool := &v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: v1alpha1.IPAddressPoolSpec{Addresses: []string{"203.0.113.0/25", "192.0.2.7-192.0.2.9", "2001:db8::5"}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"}}}}
	service := func(name string, mode corev1.LoadBalancerIPMode, labels map[string]string, nodePort int32) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels,
				Annotations: map[string]string{v1alpha1.AnnotationAllocatedFrom: "p"}},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "198.51.100.9", ClusterIPs: []string{"198.51.100.9"},
				Ports: []corev1.ServicePort{{Port: 80, NodePort: nodePort}}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
				Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.4", IPMode: ptr.To(mode)}}},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAddresses, Message: "203.0.113.4=p"}}},
		}
	}
	const pools = "[192.0.2.7/32 192.0.2.8/31 203.0.113.0/25 2001:db8::5/128]"
	label := map[string]string{labelProxy: proxyName}
	for _, c := range []struct {
		name     string
		services []*corev1.Service
		want     string
	}{
		{"no Service", nil, pools + " true []"},
		{"ipMode Proxy", []*corev1.Service{service("s", "Proxy", nil, 30000)}, pools + " true []"},
		{"ipMode VIP", []*corev1.Service{service("s", "VIP", nil, 30000)}, pools + " false []"},
		{"both modes", []*corev1.Service{service("s", "VIP", nil, 0), service("t", "Proxy", nil, 0)}, pools + " true []"},
		{"labelled", []*corev1.Service{service("s", "VIP", label, 0)}, pools + " true [198.51.100.9]"},
		{"labelled, NodePort", []*corev1.Service{service("s", "VIP", label, 30000)}, pools + " true [192.0.2.1 198.51.100.9]"},
		{"another proxy's", []*corev1.Service{service("s", "VIP", map[string]string{labelProxy: "x"}, 30000)}, pools + " false []"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFeed(t)
			f.pools.Add(pool)
			f.nodes.Add(node)
			for _, s := range c.services {
				f.services.Add(s.DeepCopy())
			}
			f.run(t)
			f.until(t, "all", func(v *view.View) bool {
				return len(v.Services) == len(c.services) && len(f.source.informers[kindPool].GetStore().List()) == 1
			})
			ours := f.source.Ours("a")
			if got := fmt.Sprint(ours.Pools, ours.Forwarded, ours.Full); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// The check for covered Pods uses only serving endpoints: none that is not ready or terminates, and none of the host's
// network. Those have addresses of Nodes, which arrive before the node itself has them.
func TestEndpoints(t *testing.T) {
	no, yes := ptr.To(false), ptr.To(true)
	on := func(addr, node string, ready, terminating *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: ready, Serving: ready, Terminating: terminating}}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.2"},
			{Type: corev1.NodeExternalIP, Address: "198.51.100.1"}}}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			on("10.1.0.9", "a", yes, no), on("10.1.0.2", "a", nil, nil), on("10.1.0.9", "a", nil, nil),
			on("10.1.0.3", "a", no, no), on("10.1.0.4", "a", no, yes), on("10.1.0.5", "a", yes, yes),
			on("10.2.0.6", "b", yes, no),
			on("192.0.2.1", "a", yes, no), on("192.0.2.2", "a", yes, no), on("198.51.100.1", "a", yes, no),
		},
	}
	f := newFeed(t)
	f.nodes.Add(node)
	f.slices.Add(slice)
	if _, _, ok := f.source.Endpoints("a"); ok {
		t.Error("known before they are listed")
	}
	f.run(t)
	f.until(t, "all", func(*view.View) bool { _, _, ok := f.source.Endpoints("a"); return ok })
	endpoints, podCIDRs, _ := f.source.Endpoints("a")
	if got := fmt.Sprint(endpoints, podCIDRs); got != "[10.1.0.2 10.1.0.9] [10.1.0.0/24]" {
		t.Errorf("got %s", got)
	}
}
