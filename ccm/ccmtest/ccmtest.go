// Package ccmtest builds the objects that the tests of the packages of ccm use.
package ccmtest

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// ServiceFor returns a class-less load balancer, changed by the functions.
func ServiceFor(name string, change ...func(*v1.Service)) *v1.Service {
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "1", Annotations: map[string]string{}},
		Spec: v1.ServiceSpec{
			Type:       v1.ServiceTypeLoadBalancer,
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports:      []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
	for _, f := range change {
		f(svc)
	}
	return svc
}

func Annotate(pairs ...string) func(*v1.Service) {
	return func(svc *v1.Service) {
		for i := 0; i < len(pairs); i += 2 {
			svc.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

// Given adds the record of a Service whose shown addresses were assigned from these pools. One pool counts for all
// addresses.
func Given(from ...string) func(*v1.Service) {
	return func(svc *v1.Service) {
		var names []string
		var records []v1alpha1.Record
		for i, in := range svc.Status.LoadBalancer.Ingress {
			pool := from[min(i, len(from)-1)]
			names = append(names, pool)
			records = append(records, v1alpha1.Record{Addr: netip.MustParseAddr(in.IP), Pool: pool})
		}
		svc.Annotations[v1alpha1.AnnotationAllocatedFrom] = strings.Join(names, ",")
		svc.Status.Conditions = append(svc.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAddresses, Status: metav1.ConditionTrue, Message: v1alpha1.FormatRecords(records)})
	}
}

func Shows(ips ...string) func(*v1.Service) {
	return func(svc *v1.Service) {
		svc.Status.LoadBalancer.Ingress = nil
		for _, ip := range ips {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress,
				v1.LoadBalancerIngress{IP: ip, IPMode: ptr.To(v1.LoadBalancerIPModeProxy)})
		}
	}
}

// Elsewhere is an address that another controller may assign any number of times.
const Elsewhere = "198.51.100.9"

func Named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func Deleted(svc *v1.Service) { svc.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) }

// Plain changes the type as the API server does.
func Plain(svc *v1.Service) {
	svc.Spec.Type, svc.Spec.LoadBalancerClass, svc.Status.LoadBalancer = v1.ServiceTypeClusterIP, nil, v1.LoadBalancerStatus{}
}

func IP(svc v1.Service) string {
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return ""
	}
	return svc.Status.LoadBalancer.Ingress[0].IP
}

func Create(t *testing.T, services corev1.ServiceInterface, svc *v1.Service) {
	t.Helper()
	svc.UID = types.UID(svc.Name)
	svc.Annotations = nil // as in the API server if there are none
	if _, err := services.Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func WarnedService(name string, change func(*v1.Service)) *v1.Service {
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u", CreationTimestamp: metav1.Unix(100, 0), Annotations: map[string]string{}},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, IPFamilies: []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol},
			Ports: []v1.ServicePort{{Port: 80, NodePort: 30080}},
		},
	}
	if change != nil {
		change(svc)
	}
	return svc
}

func Rack(name string) func(*v1.Node) {
	return func(n *v1.Node) { n.Labels = map[string]string{"rack": name} }
}

func Node(name string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
	for _, f := range change {
		f(n)
	}
	return n
}

// Reached adds addresses to the node, each "Type address".
func Reached(at ...string) func(*v1.Node) {
	return func(n *v1.Node) {
		for _, a := range at {
			kind, address, _ := strings.Cut(a, " ")
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeAddressType(kind), Address: address})
		}
	}
}

func VIPOf(name string, conditions ...metav1.Condition) *v1alpha1.VirtualIP {
	v := &v1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec.Addresses, v.Spec.Nodes = []string{name}, []string{"n1", "n2"}
	v.Spec.Services = []v1alpha1.ServiceReference{{Namespace: "default", Name: "web"}}
	for _, c := range conditions {
		c.LastTransitionTime = metav1.Unix(995, 0)
		v.Status.Conditions = append(v.Status.Conditions, c)
	}
	return v
}

func Keys(names ...string) (out []pools.ServiceKey) {
	for _, n := range names {
		out = append(out, pools.ServiceKey{Namespace: "default", Name: n})
	}
	return out
}

func Address(ip, pool string) pools.Address {
	return pools.Address{Addr: netip.MustParseAddr(ip), Pool: pool}
}

func Expect(t *testing.T, what, want string) {
	t.Helper()
	if what != want {
		t.Errorf("got %q, want %q", what, want)
	}
}
