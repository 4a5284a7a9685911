package watch

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// fullSlice is an EndpointSlice of 100 ready endpoints, as the EndpointSlice controller writes it.
func fullSlice(i, nodes int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("web-%d", i)
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}}}
	slice.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: name, UID: "0a4e7f04-0f3c-4b63-9d3f-5cc8c5b0ef3a", ResourceVersion: "12345678",
		Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}}
	for j := range 100 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			NodeName:   ptr.To(fmt.Sprintf("worker-%04d.example.com", (i*37+j*7)%nodes)), Zone: ptr.To("zone-a"),
			TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("%s-%d", name, j)},
		})
	}
	return slice
}

// TestTrimEndpoints: of Pods without addresses, each node is kept once for each state of its usable endpoints; with
// addresses, all endpoints are. Of other slices the first 64 have addresses. A second trim changes nothing.
func TestTrimEndpoints(t *testing.T) {
	endpoint := func(text string) discoveryv1.Endpoint {
		node, state, _ := strings.Cut(text, "/")
		e := discoveryv1.Endpoint{Addresses: []string{"192.0.2.1", "192.0.2.2"}, NodeName: &node}
		switch state {
		case "ready":
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)}
		case "terminating":
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
		case "terminated":
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false), Terminating: ptr.To(true)}
		case "unready":
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false)}
		}
		if node == "" {
			e.NodeName = nil
		}
		return e
	}
	for _, tt := range []struct {
		addresses bool
		manager   string
		in, want  string
	}{
		{false, ofPods, "a/ready b/ready a/ready a/unset b/terminating b/terminating a/unready c/terminated /ready /ready", "a/ready b/ready b/terminating /ready"},
		{true, ofPods, "a/ready a/ready b/terminating c/terminated c/unready /unset", "a/ready@192.0.2.1 a/ready@192.0.2.1 b/terminating@192.0.2.1 c/unusable@192.0.2.1 c/unusable@192.0.2.1 /ready@192.0.2.1"},
		{false, "", "a/ready a/ready /unset", "a/ready@192.0.2.1 a/ready@192.0.2.1 /ready@192.0.2.1"},
		{false, "endpointslicemirroring-controller.k8s.io", strings.Repeat("a/ready ", 70) + "b/ready", strings.Repeat("a/ready@192.0.2.1 ", 64) + "b/ready"},
	} {
		e := &EndpointSlices{addresses: tt.addresses}
		full := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](80)}}}
		full.Labels = map[string]string{discoveryv1.LabelManagedBy: tt.manager}
		for _, text := range strings.Fields(tt.in) {
			full.Endpoints = append(full.Endpoints, endpoint(text))
		}
		trimmed, err := e.trim(full)
		if err != nil {
			t.Fatal(err)
		}
		again, err := e.trim(trimmed)
		if err != nil || !reflect.DeepEqual(again, trimmed) {
			t.Errorf("trimmed again: %+v, %v, want %+v", again, err, trimmed)
		}
		if ports := trimmed.(*discoveryv1.EndpointSlice).Ports; !reflect.DeepEqual(ports, full.Ports) {
			t.Errorf("ports %+v, want %+v", ports, full.Ports)
		}
		var got []string
		names := map[string]*byte{}
		for _, e := range trimmed.(*discoveryv1.EndpointSlice).Endpoints {
			node := ptr.Deref(e.NodeName, "")
			if first := names[node]; node != "" && first != nil && first != unsafe.StringData(node) {
				t.Errorf("the name of node %s is there twice", node)
			}
			names[node] = unsafe.StringData(node)
			text := node + "/" + map[discoveryv1.EndpointConditions]string{ready: "ready", terminating: "terminating", unusable: "unusable"}[e.Conditions]
			if len(e.Addresses) > 0 {
				text += "@" + strings.Join(e.Addresses, "+")
			}
			got = append(got, text)
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.in, text, tt.want)
		}
	}
}

// BenchmarkEndpointSlices measures the heap that 100,000 endpoints of 1,000 Services occupy in the cache.
func BenchmarkEndpointSlices(b *testing.B) {
	for _, addresses := range []bool{false, true} {
		for _, nodes := range []int{50, 1000} {
			b.Run(fmt.Sprintf("addresses=%v/nodes=%d", addresses, nodes), func(b *testing.B) {
				e := &EndpointSlices{addresses: addresses}
				for b.Loop() {
					before := heap()
					kept := cached(b, e, nodes)
					b.ReportMetric((heap()-before)/100_000, "B/endpoint")
					runtime.KeepAlive(kept)
				}
			})
		}
	}
}

// cached returns 1,000 slices as the informer keeps them.
func cached(b *testing.B, e *EndpointSlices, nodes int) (kept []any) {
	for i := range 1000 {
		wire, err := fullSlice(i, nodes).Marshal()
		if err != nil {
			b.Fatal(err)
		}
		var slice discoveryv1.EndpointSlice
		if err := slice.Unmarshal(wire); err != nil {
			b.Fatal(err)
		}
		trimmed, err := e.trim(&slice)
		if err != nil {
			b.Fatal(err)
		}
		kept = append(kept, trimmed)
	}
	return kept
}

// heap returns the size of what is in use.
func heap() float64 {
	runtime.GC()
	runtime.GC() // strings of package unique are removed by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
