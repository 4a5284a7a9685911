package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// kubeletPod runs on a node with a kubelet, and is requested by its address.
const kubeletPod = `
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: default}
spec:
  containers:
    - name: server
      image: localhost/lab/labpod:1
      imagePullPolicy: Never
      args: [serve, server]
`

// TestKubelets: Pods run from images, and the router reaches them. Their node survives restarts of its kubelet and of
// containerd, and a reboot.
func TestKubelets(t *testing.T) {
	ctx := t.Context()
	c, err := New(ctx, Config{Bare: true, Kernel: Native, Nodes: 1, NodeGrace: 20 * time.Second, Kubelets: &Kubelets{KubeProxy: ProxyNFTables}, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(c.Err(), c.Close()); err != nil {
			t.Error(err)
		}
	}()
	if err := c.WaitNamespace(ctx, metav1.NamespaceDefault); err != nil {
		t.Fatal(err)
	}
	if err := c.ApplyYAML(ctx, kubeletPod); err != nil {
		t.Fatal(err)
	}
	answers := func() {
		t.Helper()
		pod, err := c.WaitPod(ctx, metav1.NamespaceDefault, "server", true)
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range pod.Status.PodIPs {
			target := netip.AddrPortFrom(netip.MustParseAddr(ip.IP), probe.PortHTTP)
			err := c.Eventually(ctx, 30*time.Second, "an answer of "+target.String(), func(ctx context.Context) error {
				sum, err := c.Remote.Ask(ctx, Probe{Network: "tcp", Target: target, Count: 1})
				if err == nil && sum.ByPod["server"] != 1 {
					err = fmt.Errorf("have %s", sum)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
		if len(pod.Status.PodIPs) != 2 {
			t.Errorf("Pod has addresses %v, want one of each family", pod.Status.PodIPs)
		}
	}
	answers()
	n := c.Node(0)
	if err := n.Kubelet().RestartContainerd(ctx); err != nil {
		t.Fatal(err)
	}
	answers()
	if err := n.StopKubelet(); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, time.Minute, corev1.ConditionUnknown); err != nil {
		t.Error(err)
	}
	if err := n.StartKubelet(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, time.Minute, corev1.ConditionTrue); err != nil {
		t.Error(err)
	}
	if err := n.PowerOff(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, time.Minute, corev1.ConditionUnknown); err != nil {
		t.Error(err)
	}
	if err := n.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, time.Minute, corev1.ConditionTrue); err != nil {
		t.Error(err)
	}
	answers()
}
