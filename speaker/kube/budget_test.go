package kube

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/view"
)

// heap returns the bytes in use.
func heap() int {
	runtime.GC()
	runtime.GC() // strings of package unique are removed by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func manyPorts(n int) (out []corev1.ServicePort) {
	for i := range n {
		out = append(out, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP, Port: int32(2*i + 1)})
	}
	return out
}

func manyRanges(n int) (out []string) {
	for i := range n {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1), 0}), 24).String())
	}
	return out
}

func manySlices(n int, ports []corev1.ServicePort) (out []*discoveryv1.EndpointSlice) {
	for i := range n {
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint("web-", i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}}
		for _, p := range ports {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
		}
		for j := range 1000 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{netip.AddrFrom4([4]byte{10, byte(i), byte(j >> 8), byte(j)}).String()}, NodeName: ptr.To("a")})
		}
		out = append(out, slice)
	}
	return out
}

// TestBudgets: no Service costs a node more than its budget, in the cache and in the plan. One that exceeds it is not
// served, for a typed reason; the largest that is served fits.
func TestBudgets(t *testing.T) {
	many := func(n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[fmt.Sprint("label-", i)] = strings.Repeat("x", 60)
		}
		return out
	}
	for _, test := range []struct {
		name   string
		change func(*corev1.Service)
		slices int
		want   view.Reason
	}{
		{"ports and ranges", func(s *corev1.Service) {
			s.Spec.Ports, s.Spec.LoadBalancerSourceRanges = manyPorts(2000), manyRanges(2000)
		}, 1, view.TooLarge},
		{"ranges", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = manyRanges(20000) }, 1, view.TooLarge},
		{"ranges of the annotation", func(s *corev1.Service) {
			s.Annotations[v1alpha1.AnnotationSourceRanges] = strings.Join(manyRanges(15000), ",")
		}, 1, view.TooLarge},
		{"ports", func(s *corev1.Service) { s.Spec.Ports = manyPorts(20000) }, 1, view.TooLarge},
		{"ports and external IPs", func(s *corev1.Service) {
			s.Spec.Ports, s.Labels = manyPorts(2000), map[string]string{labelProxy: proxyName}
			for i := range 2000 {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String())
			}
		}, 1, view.TooLarge},
		{"ports and endpoints", func(s *corev1.Service) { s.Spec.Ports = manyPorts(500) }, 2, view.TooLarge},
		{"labels", func(s *corev1.Service) { s.Labels = many(10000) }, 1, view.TooLarge},
		{"annotations", func(s *corev1.Service) { s.Annotations["x"] = strings.Repeat("x", 250<<10) }, 1, view.Programmed},
		{"most ports and ranges", func(s *corev1.Service) {
			s.Spec.Ports, s.Spec.LoadBalancerSourceRanges = manyPorts(80), manyRanges(99)
		}, 1, view.TooLarge}, // 80,000 real servers
		{"most ranges", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = manyRanges(2000) }, 1, view.Programmed},
		{"most endpoints", func(s *corev1.Service) {
			s.Spec.Ports, s.Spec.LoadBalancerSourceRanges = manyPorts(65), manyRanges(120)
		}, 1, view.Programmed},
	} {
		t.Run(test.name, func(t *testing.T) {
			svc := ours(func(s *corev1.Service) { s.Spec.Ports = manyPorts(1); test.change(s) })
			of := manySlices(test.slices, svc.Spec.Ports[:min(500, len(svc.Spec.Ports))])
			sent, err := svc.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			planner := forwarding.New("a", false, forwarding.Options{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}})
			v := view.New()
			v.Nodes["a"] = view.Node{}
			before := heap()
			stored := &corev1.Service{}
			if err := stored.Unmarshal(sent); err != nil {
				t.Fatal(err)
			}
			if _, err := trimService(ServiceOptions{})(stored); err != nil {
				t.Fatal(err)
			}
			if _, err := trimService(ServiceOptions{})(stored); err != nil { // as for a resync
				t.Fatal(err)
			}
			cached := heap() - before
			r, converted := convertService(ServiceOptions{})(stored)
			v.Services[r.key] = converted.(served).service
			v.Slices[r.key] = map[string]view.Slice{}
			for _, slice := range of {
				v.Slices[r.key][slice.Name] = sliceOf(slice)
			}
			start := heap()
			plan, _ := planner.Plan(v, view.Touched{All: true}, time.Unix(1, 0))
			planner.EndPlan()
			planned := heap() - start
			t.Logf("object %d kB, cache %d kB, plan %d kB: %d virtual servers, %d elements, %s",
				len(sent)>>10, cached>>10, planned>>10, len(plan.Table), len(plan.Filter), plan.Services[r.key])
			if plan.Services[r.key] != test.want {
				t.Errorf("reason %s, want %s", plan.Services[r.key], test.want)
			}
			if cached > 512<<10 {
				t.Errorf("the cache has %d kB of it", cached>>10)
			}
			if planned > 24<<20 {
				t.Errorf("its plan has %d MB", planned>>20)
			}
			runtime.KeepAlive(sent)
			runtime.KeepAlive(stored)
			runtime.KeepAlive(v)
			runtime.KeepAlive(planner)
		})
	}
}
