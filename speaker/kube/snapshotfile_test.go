package kube

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// allWatches are the watches of a node that serves all Services, without an API server.
func allWatches() []watch { return watchesOf(new(feed)) }

func watchesOf(f *feed) []watch {
	all := f.watches(true)
	for i := range all {
		if all[i].kind == kindPool {
			all[i].convert = convertPool
		}
	}
	return all
}

// FuzzSnapshot: reading any file terminates, and accepted content is read the same after it is written again.
func FuzzSnapshot(f *testing.F) {
	watches, cluster := allWatches(), bigCluster(3)
	for _, kinds := range [][]string{kindsOf(watches), {kindNode}, nil} {
		var out bytes.Buffer
		if err := encodeSnapshot(&out, head(), kinds, cluster); err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, parts, err := decodeSnapshot(bytes.NewReader(data), head(), watches)
		if err != nil {
			if parts != nil {
				t.Error("parts of what is refused")
			}
			return
		}
		if h.fits(head()) != nil || len(parts) != len(watches) {
			t.Errorf("accepted: %+v, %d kinds", h, len(parts))
		}
		for _, w := range watches {
			for r, value := range parts[w.kind] {
				if r.kind != w.kind || value == nil {
					t.Errorf("%s: %+v is %v", w.kind, r, value)
				}
			}
		}
	})
}

func kindsOf(watches []watch) (kinds []string) {
	for _, w := range watches {
		kinds = append(kinds, w.kind)
	}
	return kinds
}

// bigCluster is a cluster of n load balancers as in informers, each with three ports and ten endpoints, and one node
// per fifty load balancers.
func bigCluster(n int) map[string][]any {
	out := map[string][]any{}
	for i := range n {
		name := fmt.Sprintf("service-%d", i)
		meta := metav1.ObjectMeta{Namespace: "default", Name: name, UID: "7b2f0f0e-5c5f-4f0b-9a61-0a4f3d1f7a11", ResourceVersion: fmt.Sprint(100000 + i),
			Labels: map[string]string{"app": name, "team": "web"}, CreationTimestamp: metav1.NewTime(time.Unix(1700000000+int64(i), 0))}
		addr := fmt.Sprintf("2001:db8::%x", i+1)
		svc := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
			ClusterIP: fmt.Sprintf("2001:db8:1::%x", i+1), ClusterIPs: []string{fmt.Sprintf("2001:db8:1::%x", i+1)}, IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol}}}
		svc.Annotations = map[string]string{v1alpha1.AnnotationAllocatedFrom: "main"}
		svc.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAddresses, Message: addr + "=main"}}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr, IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-x7k2p", UID: meta.UID, ResourceVersion: meta.ResourceVersion,
			Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv6}
		for p := range int32(3) {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("port-", p), Protocol: corev1.ProtocolTCP, Port: 80 + p,
				TargetPort: intstr.FromInt32(8080 + p), NodePort: 30000 + p})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr.To(fmt.Sprint("port-", p)), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(8080 + p)})
		}
		for e := range 10 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("2001:db8:2:%x::%x", i+1, e+1)},
				NodeName:   ptr.To(fmt.Sprint("node-", (i+e)%(n/50+1))),
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)}})
		}
		vip := &v1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: addr, UID: meta.UID, ResourceVersion: meta.ResourceVersion, Generation: 3},
			Spec: v1alpha1.VirtualIPSpec{Addresses: []string{addr}, Services: []v1alpha1.ServiceReference{{Namespace: "default", Name: name}}}}
		for c := range 10 {
			vip.Spec.Nodes = append(vip.Spec.Nodes, fmt.Sprint("node-", (i+c)%(n/50+1)))
		}
		vip.Status = v1alpha1.VirtualIPStatus{Node: "node-1", Interfaces: []string{"eth0"}}
		out[kindService], out[kindSlice], out[kindVIP] = append(out[kindService], svc), append(out[kindSlice], slice), append(out[kindVIP], vip)
	}
	for i := range n/50 + 1 {
		out[kindNode] = append(out[kindNode], &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Labels: map[string]string{"rack": fmt.Sprint(i % 9)}},
			Spec: corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("2001:db8:3:%x::/64", i)}}})
	}
	return out
}

// What is read equals what was written, without the holders.
func TestSnapshotKeepsEverything(t *testing.T) {
	watches, cluster := allWatches(), bigCluster(60)
	path := filepath.Join(t.TempDir(), "snapshot")
	err := writeSnapshot(path, func(to io.Writer) error { return encodeSnapshot(to, head(), kindsOf(watches), cluster) })
	if err != nil {
		t.Fatal(err)
	}
	_, parts, err := readSnapshot(path, head(), watches)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range watches {
		if len(parts[w.kind]) != len(cluster[w.kind]) {
			t.Errorf("%s: %d of %d", w.kind, len(parts[w.kind]), len(cluster[w.kind]))
		}
		for _, obj := range cluster[w.kind] {
			if vip, is := obj.(*v1alpha1.VirtualIP); is {
				vip.Status.Node = ""
			}
			r, want := w.convert(obj)
			if got := parts[w.kind][r]; !reflect.DeepEqual(got, want) {
				t.Errorf("%+v is\n%+v\nwant\n%+v", r, got, want)
			}
		}
	}
}

// BenchmarkSnapshot writes and reads a snapshot of 5,000 load balancers with 50,000 endpoints.
func BenchmarkSnapshot(b *testing.B) {
	watches, cluster := allWatches(), bigCluster(5000)
	path := filepath.Join(b.TempDir(), "snapshot")
	encode := func(to io.Writer) error { return encodeSnapshot(to, head(), kindsOf(watches), cluster) }
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		n := countBytes(0)
		for b.Loop() {
			n = 0
			if err := encode(&n); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n), "B/file")
	})
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := writeSnapshot(path, encode); err != nil {
				b.Fatal(err)
			}
		}
		info, err := os.Stat(path)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(info.Size()), "B/file")
	})
	b.Run("read", func(b *testing.B) {
		if err := writeSnapshot(path, encode); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := readSnapshot(path, head(), watches); err != nil {
				b.Fatal(err)
			}
		}
	})
}

type countBytes int

func (n *countBytes) Write(b []byte) (int, error) { *n += countBytes(len(b)); return len(b), nil }
