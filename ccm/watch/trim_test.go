package watch

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestServiceBudget: whatever its author writes, a Service occupies a few hundred kB of the cache at most, and one
// without an address much less. What controllers read of it stays, within the budgets.
func TestServiceBudget(t *testing.T) {
	const services = 50
	annotate := func(pairs ...string) map[string]string {
		out := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = pairs[i+1]
		}
		return out
	}
	long := strings.Repeat("x", 250<<10)
	many := func(n int, format string) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf(format, i>>8, i&255))
		}
		return out
	}
	ports := func(n int) (out []v1.ServicePort) {
		for i := range n {
			out = append(out, v1.ServicePort{Name: fmt.Sprint("p", i), Protocol: v1.ProtocolTCP, Port: int32(i + 1)})
		}
		return out
	}
	for _, test := range []struct {
		name   string
		change func(*v1.Service)
		most   int // kB of a Service
		large  bool
		kept   map[string]string // annotations, if the Service is not too large
	}{
		{"headless with annotations", func(s *v1.Service) {
			s.Spec.Type, s.Spec.ClusterIP, s.Annotations = v1.ServiceTypeClusterIP, v1.ClusterIPNone, annotate("x", long)
		}, 8, false, nil},
		{"headless with ports", func(s *v1.Service) {
			s.Spec.Type, s.Spec.ClusterIP, s.Spec.Ports = v1.ServiceTypeClusterIP, v1.ClusterIPNone, ports(5000)
		}, 8, true, nil},
		{"annotations", func(s *v1.Service) {
			s.Annotations = annotate("x", long, v1alpha1.AnnotationPool, "rack", v1alpha1.AnnotationScheduler, long, "ironlb.io/poll", long, "metallb.io/y", "z")
		}, 16, false, annotate(v1alpha1.AnnotationPool, "rack", v1alpha1.AnnotationScheduler, long[:1024], "ironlb.io/poll", "", "metallb.io/y", "")},
		{"annotations of IronLB", func(s *v1.Service) {
			s.Annotations = map[string]string{}
			for _, key := range many(10000, "ironlb.io/x-%d-%d") {
				s.Annotations[key] = "x"
			}
		}, 16, false, annotate("ironlb.io/x-0-0", "", "ironlb.io/x-0-1", "", "ironlb.io/x-0-10", "", "ironlb.io/x-0-100", "", "ironlb.io/x-0-101", "",
			"ironlb.io/x-0-102", "", "ironlb.io/x-0-103", "", "ironlb.io/x-0-104", "", "ironlb.io/x-0-105", "", "ironlb.io/x-0-106", "", "ironlb.io/x-0-107", "")},
		{"source ranges of the annotation", func(s *v1.Service) {
			s.Annotations = annotate(v1alpha1.AnnotationSourceRanges, strings.Join(many(10000, "10.%d.%d.0/24"), ","))
		}, 16, true, nil},
		{"ports and source ranges", func(s *v1.Service) {
			s.Spec.Ports, s.Spec.LoadBalancerSourceRanges = ports(2000), many(2000, "10.%d.%d.0/24")
		}, 16, true, nil},
		{"ports", func(s *v1.Service) { s.Spec.Ports = ports(20000) }, 16, true, nil},
		{"the most ports", func(s *v1.Service) { s.Spec.Ports = ports(2300) }, 512, false, nil},
		{"labels", func(s *v1.Service) {
			s.Labels = map[string]string{v1alpha1.LabelProxy: v1alpha1.ProxyName}
			for _, key := range many(10000, "x-%d-%d") {
				s.Labels[key] = key
			}
		}, 16, true, nil},
		{"selector", func(s *v1.Service) {
			s.Spec.Selector = map[string]string{}
			for _, key := range many(10000, "x-%d-%d") {
				s.Spec.Selector[key] = key
			}
		}, 16, true, nil},
		{"external IPs", func(s *v1.Service) { s.Spec.ExternalIPs = many(10000, "198.18.%d.%d") }, 64, true, nil},
		{"addresses in the status", func(s *v1.Service) {
			for _, ip := range many(10000, "198.18.%d.%d") {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip, Hostname: "a.example"})
			}
		}, 192, true, nil},
		{"finalizers", func(s *v1.Service) {
			s.Finalizers = append(many(10000, "example.com/%d-%d"), "ironlb.io/load-balancer")
		}, 16, true, nil},
		{"owners", func(s *v1.Service) {
			for _, name := range many(10000, "x-%d-%d") {
				s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{Name: name, UID: "u"})
			}
		}, 16, false, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			full := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"}, Spec: v1.ServiceSpec{
				Type: v1.ServiceTypeLoadBalancer, ClusterIP: "198.51.100.1", ClusterIPs: []string{"198.51.100.1"}, Ports: ports(1)}}
			test.change(full)
			sent, err := full.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			before := heap()
			var stored []*v1.Service
			for range services {
				svc := &v1.Service{}
				if err := svc.Unmarshal(sent); err != nil {
					t.Fatal(err)
				}
				if _, err := Objects(svc); err != nil {
					t.Fatal(err)
				}
				stored = append(stored, svc)
			}
			size := int(heap()-before) / services >> 10
			t.Logf("object %d kB, cache %d kB", len(sent)>>10, size)
			if size > test.most {
				t.Errorf("the cache has %d kB of each of %d Services, want at most %d", size, services, test.most)
			}
			once := stored[0].DeepCopy()
			if _, err := Objects(stored[0]); err != nil || !reflect.DeepEqual(stored[0], once) {
				t.Errorf("trimmed again: %+v, %v, want %+v", stored[0], err, once)
			}
			if why := once.Annotations[v1alpha1.AnnotationTooLarge]; (why != "") != test.large || test.large && len(once.Spec.Ports) > 0 {
				t.Errorf("too large: %q, %d ports", why, len(once.Spec.Ports))
			}
			if !test.large && !reflect.DeepEqual(once.Annotations, test.kept) {
				t.Errorf("annotations %v, want %v", once.Annotations, test.kept)
			}
			if once.Labels[v1alpha1.LabelProxy] != full.Labels[v1alpha1.LabelProxy] || len(full.Finalizers) > 0 && once.Finalizers[len(once.Finalizers)-1] != "ironlb.io/load-balancer" {
				t.Errorf("labels %v, finalizers %v", once.Labels, once.Finalizers)
			}
			runtime.KeepAlive(sent)
			runtime.KeepAlive(stored)
		})
	}
}
