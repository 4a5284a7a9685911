package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/ironlb/ironlb/test/lab/kubelet"
)

// TestPodGetsAnotherAddress: the status of a Pod whose address changes has the new addresses alone, as the API server
// merges the patch. The Pods of a node that was powered off may come back with each other's addresses.
func TestPodGetsAnotherAddress(t *testing.T) {
	hosts := []string{"192.0.2.11", "2001:db8::11"}
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	for _, ips := range []string{"203.0.113.2,2001:db8::2", "203.0.113.3,2001:db8::3"} {
		pod.Annotations[kubelet.AnnotationIPs] = ips
		merged, err := strategicpatch.StrategicMergePatch(encode(pod), encode(podPatch(pod, hosts)), core.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		pod = &core.Pod{}
		if err := json.Unmarshal(merged, pod); err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, ip := range pod.Status.PodIPs {
			got = append(got, ip.IP)
		}
		if want := strings.Split(ips, ","); !slices.Equal(got, want) || pod.Status.PodIP != want[0] || len(pod.Status.HostIPs) != 2 {
			t.Errorf("podIPs %v, podIP %s, hostIPs %v; want %v", got, pod.Status.PodIP, pod.Status.HostIPs, want)
		}
		if again := podPatch(pod, hosts); again != nil {
			t.Errorf("the status is still to be changed: %s", encode(again))
		}
	}
}
