package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// The addresses are of the range that RFC 2544 reserves for benchmarks, and of 10.0.0.0/8 for endpoints. They are used
// only in the namespace of the measurement.
var (
	clusterIPs    = netip.MustParsePrefix("198.18.0.0/16")
	loadBalancers = netip.MustParsePrefix("198.19.0.0/16")
	podNetwork    = netip.MustParsePrefix("10.64.0.0/10")
)

const (
	thisNode   = "node1"
	link       = "eth0"
	namespace  = "default"
	perService = 4
)

// One more Service has that many endpoints, in EndpointSlices of the size that Kubernetes gives them. Its first
// endpoint has number bigFirst; those of the others have smaller ones.
const bigEndpoints, perSlice, bigFirst = 1000, 100, 1 << 19

var nodes = []string{thisNode, "node2", "node3"}

// created is the age of all objects.
var created = metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))

// nth returns the n-th address of an IPv4 prefix.
func nth(p netip.Prefix, n int) string {
	b := p.Addr().As4()
	sum := uint32(b[0])<<24 + uint32(b[1])<<16 + uint32(b[2])<<8 + uint32(b[3]) + uint32(n)
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}).String()
}

func nameOf(i int) string { return fmt.Sprintf("service-%05d", i) }

// objectMeta returns metadata as large as the API server's own.
func objectMeta(name string, writers ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012s", name)), CreationTimestamp: created}
	for _, writer := range writers {
		m.ManagedFields = append(m.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: writer, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &created, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},` +
				`"f:generateName":{},"f:labels":{".":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},` +
				`"f:ownerReferences":{".":{},"k:{\"uid\":\"00000000-0000-4000-8000-000000000000\"}":{}}},"f:ports":{}}`),
		})
	}
	return m
}

// service returns a Service of type LoadBalancer with one port and an address of IronLB's pool.
func service(i int) *corev1.Service {
	addr := nth(loadBalancers, i)
	m := objectMeta(nameOf(i), "kubectl", "ironlb-ccm")
	m.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
	m.Labels = map[string]string{"app.kubernetes.io/name": nameOf(i), "app.kubernetes.io/part-of": "shop"}
	m.Annotations = map[string]string{v1alpha1.AnnotationAllocatedFrom: "main"}
	condition := func(kind, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Allocated", Message: message, LastTransitionTime: created}
	}
	return &corev1.Service{
		ObjectMeta: m,
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false),
			Selector: map[string]string{"app.kubernetes.io/name": nameOf(i)}, SessionAffinity: corev1.ServiceAffinityNone,
			ClusterIP: nth(clusterIPs, i), ClusterIPs: []string{nth(clusterIPs, i)},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster, InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster),
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: addr, IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}}},
			Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionAddresses, addr+"=main"), condition(v1alpha1.ConditionAllocated, "Allocated "+addr+" from pool main"),
			},
		},
	}
}

// endpointSlice returns the endpoints of Service i at the times-th change: each change replaces the last endpoint.
func endpointSlice(i, times int) *discoveryv1.EndpointSlice {
	return slice(i, "x7k2p", perService*i, perService, times)
}

// bigSlice is one of the Service with bigEndpoints, which is Service i.
func bigSlice(i, part, times int) *discoveryv1.EndpointSlice {
	return slice(i, fmt.Sprintf("x7k%02d", part), bigFirst+perSlice*part, perSlice, times)
}

// slice returns count endpoints of Service i, numbered from first.
func slice(i int, suffix string, first, count, times int) *discoveryv1.EndpointSlice {
	m := objectMeta(nameOf(i)+"-"+suffix, "kube-controller-manager")
	m.GenerateName = nameOf(i) + "-"
	m.Labels = map[string]string{discoveryv1.LabelServiceName: nameOf(i), discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
	m.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
	m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: nameOf(i), UID: objectMeta(nameOf(i)).UID, Controller: ptr.To(true)}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: m, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for j := range count {
		n := first + j
		if j == count-1 {
			n += 1 << 20 * (times % 2)
		}
		pod := fmt.Sprintf("%s-7d4b9c6f5d-%05d", nameOf(i), n)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{nth(podNetwork, n)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			NodeName:   ptr.To(nodes[(i+j)%len(nodes)]),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod, UID: objectMeta(pod).UID},
		})
	}
	return slice
}

// virtualIP returns the ownership of the address of Service i, as its owner reports it.
func virtualIP(i int) *v1alpha1.VirtualIP {
	m := objectMeta(nth(loadBalancers, i), "ironlb-ccm", "ironlb-speaker")
	m.Namespace, m.Generation = "", 1
	return &v1alpha1.VirtualIP{
		ObjectMeta: m,
		Spec: v1alpha1.VirtualIPSpec{
			Addresses: []string{nth(loadBalancers, i)}, Nodes: nodes, Services: []v1alpha1.ServiceReference{{Namespace: namespace, Name: nameOf(i)}},
		},
		Status: v1alpha1.VirtualIPStatus{
			Node: thisNode, Interfaces: []string{link}, Since: &created,
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionAnnounced, Status: metav1.ConditionTrue, Reason: "Owner", Message: "announced by node " + thisNode,
				ObservedGeneration: 1, LastTransitionTime: created,
			}},
		},
	}
}

func node(i int) *corev1.Node {
	m := objectMeta(nodes[i], "kubelet")
	m.Namespace = ""
	return &corev1.Node{
		ObjectMeta: m, Spec: corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.%d.0.0/16", 64+i), PodCIDRs: []string{fmt.Sprintf("10.%d.0.0/16", 64+i)}},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", 1+i)}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// cluster returns the objects of a cluster with that many Services, and one of bigEndpoints.
func cluster(services int) map[string]*resource {
	own := v1alpha1.GroupVersion.String()
	all := map[string]*resource{
		"services":          {version: "v1", list: func() runtime.Object { return &corev1.ServiceList{} }, proto: true},
		"nodes":             {version: "v1", list: func() runtime.Object { return &corev1.NodeList{} }, proto: true},
		"secrets":           {version: "v1", list: func() runtime.Object { return &corev1.SecretList{} }, proto: true},
		"endpointslices":    {version: "discovery.k8s.io/v1", list: func() runtime.Object { return &discoveryv1.EndpointSliceList{} }, proto: true},
		"servicecidrs":      {version: "networking.k8s.io/v1", list: func() runtime.Object { return &networkingv1.ServiceCIDRList{} }, proto: true},
		"virtualips":        {version: own, list: func() runtime.Object { return &v1alpha1.VirtualIPList{} }},
		"ipaddresspools":    {version: own, list: func() runtime.Object { return &v1alpha1.IPAddressPoolList{} }},
		"l2advertisements":  {version: own, list: func() runtime.Object { return &v1alpha1.L2AdvertisementList{} }},
		"bgppeers":          {version: own, list: func() runtime.Object { return &v1alpha1.BGPPeerList{} }},
		"bgpadvertisements": {version: own, list: func() runtime.Object { return &v1alpha1.BGPAdvertisementList{} }},
		"bfdprofiles":       {version: own, list: func() runtime.Object { return &v1alpha1.BFDProfileList{} }},
		"communities":       {version: own, list: func() runtime.Object { return &v1alpha1.CommunityList{} }},
	}
	add := func(name string, obj runtime.Object) { all[name].objects = append(all[name].objects, obj) }
	for i := range services {
		add("services", service(i))
		add("endpointslices", endpointSlice(i, 0))
		add("virtualips", virtualIP(i))
	}
	add("services", service(services))
	add("virtualips", virtualIP(services))
	for part := range bigEndpoints / perSlice {
		add("endpointslices", bigSlice(services, part, 0))
	}
	for i := range nodes {
		add("nodes", node(i))
	}
	add("servicecidrs", &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{clusterIPs.String()}}})
	pool, ad := &v1alpha1.IPAddressPool{}, &v1alpha1.L2Advertisement{}
	for text, into := range map[string]runtime.Object{
		fmt.Sprintf(`{"metadata":{"name":"main"},"spec":{"addresses":[%q]}}`, loadBalancers):                   pool,
		fmt.Sprintf(`{"metadata":{"name":"main"},"spec":{"ipAddressPools":["main"],"interfaces":[%q]}}`, link): ad,
	} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			panic(err)
		}
	}
	add("ipaddresspools", pool)
	add("l2advertisements", ad)
	return all
}
