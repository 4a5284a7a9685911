package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/lab/kubelet"
)

// agent reports for one node. Its run loop is the only writer.
type agent struct {
	node         string
	addresses    []string // InternalIPs
	period       time.Duration
	core         corev1.CoreV1Interface
	coordination coordinationv1.CoordinationV1Interface
	log          *slog.Logger
	trigger      chan struct{}
	lease        *coordination.Lease // last observed
}

func (a *agent) run(ctx context.Context) error {
	nodes := a.watch(ctx, "nodes", "metadata.name", &core.Node{})
	pods := a.watch(ctx, "pods", "spec.nodeName", &core.Pod{})
	tick := time.NewTicker(a.period)
	defer tick.Stop()
	for {
		if err := a.renew(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("renew the lease", "error", err)
		}
		a.report(ctx, nodes, pods)
		for renew := false; !renew; {
			select {
			case <-ctx.Done():
				return nil
			case <-a.trigger:
				a.report(ctx, nodes, pods)
			case <-tick.C:
				renew = true
			}
		}
	}
}

// watch keeps a copy of the objects whose field is this node's name.
func (a *agent) watch(ctx context.Context, resource, field string, kind runtime.Object) cache.Store {
	lw := cache.NewListWatchFromClient(a.core.RESTClient(), resource, metav1.NamespaceAll, fields.OneTermEqualSelector(field, a.node))
	trigger := func(any) {
		select {
		case a.trigger <- struct{}{}:
		default:
		}
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw,
		ObjectType:    kind,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    trigger,
			UpdateFunc: func(_, now any) { trigger(now) },
			DeleteFunc: trigger,
		},
	})
	go controller.RunWithContext(ctx)
	return store
}

// renew renews the node's Lease, and creates a missing one.
func (a *agent) renew(ctx context.Context) error {
	leases := a.coordination.Leases(core.NamespaceNodeLease)
	now := ptr.To(metav1.NowMicro())
	if a.lease == nil {
		lease, err := leases.Get(ctx, a.node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			lease, err = leases.Create(ctx, &coordination.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: a.node},
				Spec: coordination.LeaseSpec{
					HolderIdentity: &a.node, LeaseDurationSeconds: ptr.To[int32](40), RenewTime: now,
				},
			}, metav1.CreateOptions{})
		}
		if err != nil {
			return err
		}
		a.lease = lease
	}
	a.lease.Spec.RenewTime = now
	lease, err := leases.Update(ctx, a.lease, metav1.UpdateOptions{})
	if err != nil {
		a.lease = nil // it may have changed: fetch it
		return err
	}
	a.lease = lease
	return nil
}

// report writes the statuses that differ from the expected ones.
func (a *agent) report(ctx context.Context, nodes, pods cache.Store) {
	for _, o := range nodes.List() {
		if patch := nodePatch(o.(*core.Node), a.addresses); patch != nil {
			_, err := a.core.Nodes().PatchStatus(ctx, a.node, encode(patch))
			a.published(ctx, "node", a.node, err)
		}
	}
	for _, o := range pods.List() {
		pod := o.(*core.Pod)
		if patch := podPatch(pod, a.addresses); patch != nil {
			_, err := a.core.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, encode(patch), metav1.PatchOptions{}, "status")
			a.published(ctx, "pod", pod.Namespace+"/"+pod.Name, err)
		}
	}
}

// published logs the result of a report. The next tick retries.
func (a *agent) published(ctx context.Context, kind, name string, err error) {
	switch {
	case err == nil:
		a.log.Info("status reported", kind, name)
	case !apierrors.IsNotFound(err) && ctx.Err() == nil:
		a.log.Warn("report a status", kind, name, "error", err)
	}
}

// nodePatch returns nil for a node that is already Ready.
func nodePatch(node *core.Node, addresses []string) any {
	for _, c := range node.Status.Conditions {
		if c.Type == core.NodeReady && c.Status == core.ConditionTrue {
			return nil
		}
	}
	now := metav1.Now()
	var own []core.NodeAddress
	for _, a := range addresses {
		if len(node.Status.Addresses) > 0 {
			break // a patch merges them by type, and a dual-stack node has two of one type
		}
		own = append(own, core.NodeAddress{Type: core.NodeInternalIP, Address: a})
	}
	return status(core.NodeStatus{
		Addresses: own,
		NodeInfo: core.NodeSystemInfo{
			KubeletVersion: "lab", ContainerRuntimeVersion: "netns", OSImage: "IronLB lab", KernelVersion: kernel(),
			OperatingSystem: "linux", Architecture: goruntime.GOARCH,
		},
		Conditions: []core.NodeCondition{{
			Type: core.NodeReady, Status: core.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	})
}

// kernel returns the release of the node's kernel.
func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(name.Release[:])
}

// podPatch returns nil for a Pod whose status is correct, or that does not serve yet.
func podPatch(pod *core.Pod, hosts []string) any {
	ips := strings.Split(pod.Annotations[kubelet.AnnotationIPs], ",")
	if ips[0] == "" {
		return nil
	}
	ready := core.ConditionTrue
	if pod.Annotations[kubelet.AnnotationReady] == "false" {
		ready = core.ConditionFalse
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == core.PodReady && c.Status == ready && pod.Status.PodIP == ips[0] && pod.Status.Phase == core.PodRunning {
			return nil
		}
	}
	now := metav1.Now()
	conditions := []core.PodCondition{}
	for _, kind := range []core.PodConditionType{core.PodScheduled, core.PodInitialized, core.ContainersReady, core.PodReady} {
		c := core.PodCondition{Type: kind, Status: core.ConditionTrue, LastTransitionTime: now}
		if kind == core.ContainersReady || kind == core.PodReady {
			c.Status = ready
		}
		conditions = append(conditions, c)
	}
	return map[string]any{"status": map[string]any{
		"phase": core.PodRunning, "startTime": now, "conditions": conditions,
		"hostIP": hosts[0], "hostIPs": replacement(hosts), "podIP": ips[0], "podIPs": replacement(ips),
	}}
}

// replacement is a list of addresses in place of the one before: a strategic merge patch would add to it, and the API
// server refuses two addresses of a family.
func replacement(ips []string) []map[string]string {
	list := []map[string]string{{"$patch": "replace"}}
	for _, ip := range ips {
		list = append(list, map[string]string{"ip": ip})
	}
	return list
}

func status(s any) any { return map[string]any{"status": s} }

func encode(patch any) []byte {
	data, err := json.Marshal(patch)
	if err != nil {
		panic(fmt.Sprintf("encode a status: %v", err)) // only a programmer's error
	}
	return data
}
