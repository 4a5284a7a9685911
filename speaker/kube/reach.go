package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// Reasons of the Events about a node's reachability.
const (
	EndpointsUnreachable = "EndpointsUnreachable"
	EndpointsReachable   = "EndpointsReachable"
)

// reachStatus fills in the reachability of the nodes to list.
func reachStatus(out *v1alpha1.SpeakerStatusStatus, w *report.NodeStatus, listed func(string) bool) {
	for _, name := range slices.Sorted(maps.Keys(w.Reach.Unreachable)) {
		if !listed(name) {
			continue
		}
		u, n := w.Reach.Unreachable[name], w.Unreachable[name]
		status := v1alpha1.UnreachableStatus{
			Node: name, Since: metav1.NewTime(u.Since).Rfc3339Copy(), Endpoints: int32(n.LeftOut),
			EndpointsFailedOpen: int32(n.FailedOpen),
		}
		for _, silent := range u.Silent {
			status.Silent = append(status.Silent, v1alpha1.Witness(silent))
		}
		if u.Gateway.IsValid() {
			status.Gateway = u.Gateway.String()
		}
		out.Unreachable = append(out.Unreachable, status)
	}
	for _, name := range slices.Sorted(maps.Keys(w.Reach.Unwitnessed)) {
		if listed(name) {
			out.WithoutWitness = append(out.WithoutWitness, name)
		}
	}
	out.CutOff = w.Reach.CutOff
}

// Reach writes an Event about each node that becomes unreachable, and one when it is reachable again. If all speakers
// find the same, only the first of them by name writes it. Otherwise each speaker writes its own. That is decided once:
// when the node returns, its heartbeats arrive before it counts as reachable, and all speakers would write.
func (e *Events) Reach(status report.NodeStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.running {
		return
	}
	if e.unreachable == nil {
		e.unreachable = map[string]bool{}
	}
	for name, u := range status.Reach.Unreachable {
		if _, decided := e.unreachable[name]; decided {
			continue
		}
		writes, settled := report.WritesReach(e.node, name, status, time.Now())
		if !settled {
			continue
		}
		if e.unreachable[name] = writes; !writes {
			continue
		}
		n := status.Unreachable[name]
		e.nodeEvent(name, corev1.EventTypeWarning, EndpointsUnreachable, unreachableText(e.node, u, n))
	}
	for name, written := range e.unreachable {
		if _, still := status.Reach.Unreachable[name]; still {
			continue
		}
		delete(e.unreachable, name)
		if written {
			e.nodeEvent(name, corev1.EventTypeNormal, EndpointsReachable,
				fmt.Sprintf("Reachable from node %s again; endpoints here take new connections", e.node))
		}
	}
}

func unreachableText(from string, u view.UnreachableNode, n view.UnreachableEndpoints) string {
	var silent []string
	for _, w := range u.Silent {
		silent = append(silent, string(w))
	}
	text := fmt.Sprintf("Unreachable from node %s: neither the speaker nor the kernel (%s) answers; ", from, strings.Join(silent, ", "))
	if u.Gateway.IsValid() {
		text += fmt.Sprintf("gateway %v does; ", u.Gateway)
	}
	text += fmt.Sprintf("%d endpoints take no new connections", n.LeftOut)
	if n.FailedOpen > 0 {
		text += fmt.Sprintf(", %d do because no other endpoint is left", n.FailedOpen)
	}
	return text
}

// nodeEvent writes an Event about a node.
func (e *Events) nodeEvent(node, kind, reason, text string) {
	// The UID is the name: "kubectl describe node" finds the Events of the kubelet and of kube-proxy by it.
	ref := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: types.UID(node)}
	e.recorder.Event(ref, kind, reason, text)
}
