package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// documented is a comment in a document that names a cluster of documentedClusters and a command, and the block of its
// output behind it.
var documented = regexp.MustCompile("(?s)<!-- output, cluster ([a-z-]+): kubectl ironlb ([^>\n]*) -->\n+```\n(.*?)```\n")

// documentedClusters are the clusters of the examples in the documents.
var documentedClusters = map[string]func() client.Client{
	"healthy":     func() client.Client { return documentedCluster(func(*documentedObjects) {}) },
	"no-endpoint": func() client.Client { return documentedCluster(func(o *documentedObjects) { o.slice.Endpoints = nil }) },
	"dead-node": func() client.Client {
		return documentedCluster(func(o *documentedObjects) {
			o.virtualIP.Spec.Nodes = []string{"node-2", "node-3", "node-1"}
			o.virtualIP.Status.Node, o.virtualIP.Status.Since = "node-2", ago(20*time.Second)
			o.speakers[1].Status.VirtualIPs, o.speakers[0].Status.Updated = 1, ago(8*time.Minute)
			for _, s := range o.speakers[1:] {
				s.Status.Alive, s.Status.Updated = "1/2", ago(20*time.Second)
				s.Status.Members[0].State, s.Status.Members[0].Since = v1alpha1.MemberSilent, ago(20*time.Second)
			}
		})
	},
	"pool-full": func() client.Client {
		return documentedCluster(func(o *documentedObjects) {
			waiting := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shop"}, Spec: o.service.Spec}
			waiting.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAllocated, metav1.ConditionFalse, "PoolExhausted",
				"default/shop gets no IPv4 address: no address is free in pool rack-1: add addresses to spec.addresses, or delete a Service")}
			o.pool.Spec.Addresses, o.pool.Status.AvailableIPv4 = []string{"192.0.2.128/32"}, 0
			o.pool.Status.Conditions = append(o.pool.Status.Conditions, conditionOf("Exhausted", metav1.ConditionTrue, "NoneFree", "No IPv4 address is free. Add addresses, or another pool"))
			o.more = append(o.more, waiting)
		})
	},
}

// documentedObjects are those of a cluster of three nodes in which Service default/web works.
type documentedObjects struct {
	pool      *v1alpha1.IPAddressPool
	service   *corev1.Service
	slice     *discoveryv1.EndpointSlice
	virtualIP *v1alpha1.VirtualIP
	speakers  []*v1alpha1.SpeakerStatus
	more      []client.Object
}

func documentedCluster(change func(*documentedObjects)) client.Client {
	o := documentedObjects{
		pool:    &v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "rack-1"}},
		service: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}},
		slice: &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4},
		virtualIP: vip("192.0.2.128", "default/web", "node-1 node-2 node-3", "node-1", conditionOf(v1alpha1.ConditionAnnounced, metav1.ConditionTrue, "Owner", "")),
	}
	o.pool.Spec.Addresses = []string{"192.0.2.128/28"}
	o.pool.Status = v1alpha1.IPAddressPoolStatus{AssignedIPv4: 1, AvailableIPv4: 15, Conditions: []metav1.Condition{conditionOf("Ready", metav1.ConditionTrue, "Ready", "")}}
	o.service.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}
	o.service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.128"}}
	o.service.Status.Conditions = []metav1.Condition{
		conditionOf(v1alpha1.ConditionAllocated, metav1.ConditionTrue, "Allocated", "Allocated 192.0.2.128 from pool rack-1"),
		conditionOf(v1alpha1.ConditionAddresses, metav1.ConditionTrue, "Recorded", "192.0.2.128=rack-1"),
	}
	o.slice.Ports = []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(80))}}
	o.slice.Endpoints = []discoveryv1.Endpoint{
		{Addresses: []string{"10.244.1.5"}, NodeName: ptr.To("node-2")}, {Addresses: []string{"10.244.2.5"}, NodeName: ptr.To("node-3")},
	}
	o.virtualIP.Status.Interfaces = []string{"eth0"}
	ccm := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: "ironlb-ccm"}}
	ccm.Status.AvailableReplicas = 1
	ccm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "ironlb-ccm", Args: []string{"--forwarding=direct"}}}
	objects := []client.Object{
		ccm,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "rack-1"}},
	}
	names := []string{"node-1", "node-2", "node-3"}
	for _, name := range names {
		s := &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Status = v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Healthy: true, Reason: "Programmed"}, Alive: "2/2", Updated: ago(3 * time.Minute),
			Interfaces: []v1alpha1.InterfaceStatus{{Name: "eth0", Up: true}},
		}
		for _, other := range names {
			if other != name {
				s.Status.Members = append(s.Status.Members, v1alpha1.MemberStatus{Node: other, State: v1alpha1.MemberAlive})
			}
		}
		o.speakers = append(o.speakers, s)
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	o.speakers[0].Status.VirtualIPs = 1
	change(&o)
	for _, s := range o.speakers {
		objects = append(objects, s)
	}
	return cluster(append(append(objects, o.pool, o.service, o.slice, o.virtualIP), o.more...)...)
}

// TestDocumentedOutput: the output of status and explain in the documents is that of the commands. -update rewrites it.
func TestDocumentedOutput(t *testing.T) {
	seen := map[string]int{}
	for _, root := range []string{"../../README.md", "../../docs"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || filepath.Ext(path) != ".md" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			printed := documented.ReplaceAllStringFunc(string(text), func(block string) string {
				m := documented.FindStringSubmatch(block)
				of := documentedClusters[m[1]]
				if of == nil {
					t.Errorf("%s: there is no cluster %s", path, m[1])
					return block
				}
				args := strings.Fields(m[2])
				seen[args[0]]++
				want := run(of(), args...)
				if m[3] == want {
					return block
				}
				if !*update {
					t.Errorf("%s: kubectl ironlb %s prints\n%s\nThe page has\n%s\nRun go test ./cmd/kubectl-ironlb -update, and review the difference.", path, m[2], want, m[3])
				}
				return strings.TrimSuffix(block, m[3]+"```\n") + want + "```\n"
			})
			if *update && printed != string(text) {
				return os.WriteFile(path, []byte(printed), 0o644)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen["status"] == 0 || seen["explain"] == 0 {
		t.Errorf("the documents have the output of %v, want some of status and of explain", seen)
	}
}
