package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab/connections"
	"github.com/ironlb/ironlb/test/lab/probe"
)

// TestConnections: connections to a deleted Pod break at the end of its grace period and not before. The client sees
// the node's address, and captures the packets. Other Pods do not change the address of the Pods' gateway.
func TestConnections(t *testing.T) {
	cluster.Need(t)
	node, from := cluster.Node(0), cluster.Node(1)
	pod, err := cluster.AddPod(t.Context(), PodSpec{Name: "grace", Node: node, Grace: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var targets []netip.AddrPort
	for _, ip := range pod.Status.PodIPs {
		targets = append(targets, target(t, ip.IP, probe.PortEcho))
	}
	const kept = 4
	k, err := from.StartConnections(t.Context(), &connections.Client{
		Targets: targets, Kept: kept, Every: 100 * time.Millisecond, Bound: Lost, Open: time.Hour, Lines: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Kill(); err != nil {
			t.Error(err)
		}
	})
	count := func(what string, has func(connections.Life) bool) {
		t.Helper()
		cluster.Await(t, time.Minute, what, func(context.Context) error {
			lives, err := k.Lives()
			n := 0
			for _, l := range lives {
				if has(l) {
					n++
				}
			}
			if err == nil && n != kept {
				err = fmt.Errorf("%d of %d", n, kept)
			}
			return err
		})
	}
	count("all connections are established", func(l connections.Life) bool { return !l.First.IsZero() })
	gateway, err := node.Exec(t.Context(), "cat", "/sys/class/net/"+podBridge+"/address")
	if want := mac(node.gateway()); err != nil || strings.TrimSpace(gateway) != want {
		t.Errorf("the address of the Pods' gateway is %q, want %s: %v", gateway, want, err)
	}
	pods := cluster.Kube.CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if pod, err = pods.Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	count("all connections are broken", func(l connections.Life) bool { return l.Cause != connections.Unbroken })
	lives, done, err := k.Stop()
	if err != nil || len(lives) != kept {
		t.Fatalf("%d connections, %v", len(lives), err)
	}
	for _, l := range lives {
		if l.Ended.Before(pod.DeletionTimestamp.Time) || l.Pod != pod.Name || l.Cause != connections.Closed && l.Cause != connections.Reset {
			t.Errorf("the Pod was to serve until %v: %+v", pod.DeletionTimestamp, l)
		}
		if l.Client != from.Addr.String() && l.Client != from.Addr6.String() {
			t.Errorf("the Pod saw the client %s", l.Client)
		}
		if w := l.Wire; done.Dropped == 0 && (w.SYNs == 0 || w.SYNACK.IsZero() || len(w.From) != 1 || w.From[0] != node.MAC()) {
			t.Errorf("captured: %+v", w)
		}
	}
}

// TestJoin: a node that has left joins again.
func TestJoin(t *testing.T) {
	cluster.Need(t)
	n := cluster.Node(2)
	if err := n.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Kube.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Node is still there: %v", err)
	}
	if err := n.Join(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.WaitReady(t.Context(), time.Second, corev1.ConditionTrue), cluster.Err()); err != nil {
		t.Error(err)
	}
	pings(t, n, true)
}
