// Package watch states which parts of the watched objects count.
//
//   - Objects and Speakers drop from the caches what no controller reads.
//   - ServiceChanged and PoolChanged report whether a change is one that placement and BGP depend on. Heartbeats and
//     counts are not.
//   - StatusUnknown and AbsentFor state when the report of a node, and the absence of its speaker, count.
//   - Kinds is the cache of the kinds of IronLB's API group.
package watch

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Kinds is the cache of the kinds of IronLB's API group.
type Kinds struct{ ctrlcache.Cache }

// Watch registers the handler for changes of the kind. It returns the sync function of the handler.
func (k Kinds) Watch(ctx context.Context, kind client.Object, handler cache.ResourceEventHandler) (cache.InformerSynced, error) {
	inf, err := k.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", kind, err)
	}
	reg, err := inf.AddEventHandler(handler)
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", kind, err)
	}
	return reg.HasSynced, nil
}

// WatchAll registers the handler for changes of the kinds. It returns the sync functions.
func (k Kinds) WatchAll(ctx context.Context, handler cache.ResourceEventHandler, all ...client.Object) ([]cache.InformerSynced, error) {
	var synced []cache.InformerSynced
	for _, kind := range all {
		is, err := k.Watch(ctx, kind, handler)
		if err != nil {
			return nil, err
		}
		synced = append(synced, is)
	}
	return synced, nil
}

// StatusUnknown reports whether the Ready condition of a node is Unknown: the last report of its speaker is then
// outdated.
func StatusUnknown(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionUnknown
		}
	}
	return false
}

// Addresses parses a list of addresses. An entry that is none is left out.
func Addresses(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// NodeAddresses returns the addresses on which the node is reachable.
func NodeAddresses(n *v1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type != v1.NodeInternalIP && a.Type != v1.NodeExternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, addr.Unmap().WithZone(""))
		}
	}
	return out
}

// TaintToBeDeleted is set by the cluster autoscaler on a node that it is about to remove.
const TaintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// ExclusionReason returns why the node may have no addresses at all, empty if it may. A cordoned or not ready node may.
// The value of the exclude label counts as in k8s.io/cloud-provider since 1.34: only false keeps the node.
func ExclusionReason(n *v1.Node, ignoreExclude bool) string {
	if v, ok := n.Labels[v1.LabelNodeExcludeBalancers]; ok && !ignoreExclude {
		if excluded, err := strconv.ParseBool(v); err != nil || excluded {
			return "labelled " + v1.LabelNodeExcludeBalancers
		}
	}
	switch {
	case n.DeletionTimestamp != nil:
		return "being deleted"
	case slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == TaintToBeDeleted }):
		return "tainted " + TaintToBeDeleted
	case HasCondition(n, v1.NodeNetworkUnavailable):
		return "its network is unavailable"
	}
	return ""
}

// HasCondition reports whether the condition is True. Unknown is inconclusive: after an outage of the API server all
// conditions may be Unknown.
func HasCondition(n *v1.Node, kind v1.NodeConditionType) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == kind && c.Status == v1.ConditionTrue
	})
}

// AbsentFor is how long a speaker must be absent to count. A restarted or upgraded speaker returns earlier.
const AbsentFor = 30 * time.Second

// UnannouncedFor is how long an address may be unannounced before that is reported. Meanwhile the author creates an
// advertisement, a failover ends, or a Pod starts. A speaker reports once a second, and ironlb-ccm evaluates BGP as
// often: a user sees the report within ten seconds.
const UnannouncedFor = 7 * time.Second

// PoolChanged reports whether the change is relevant to placement: the number of assigned addresses is not.
func PoolChanged(before, after *v1alpha1.IPAddressPool) bool {
	return before.Generation != after.Generation || !labels.Equals(before.Labels, after.Labels) ||
		before.Annotations[v1alpha1.AnnotationRebalance] != after.Annotations[v1alpha1.AnnotationRebalance] ||
		before.Status.Rebalanced != after.Status.Rebalanced
}

// ServiceChanged reports whether the change is relevant to placement.
func ServiceChanged(before, after *v1.Service) bool {
	return before.Spec.Type != after.Spec.Type ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		before.Annotations[v1alpha1.AnnotationAllocatedFrom] != after.Annotations[v1alpha1.AnnotationAllocatedFrom] ||
		!maps.Equal(before.Labels, after.Labels) || !sameIngress(before.Status.LoadBalancer.Ingress, after.Status.LoadBalancer.Ingress)
}

func sameIngress(a, b []v1.LoadBalancerIngress) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].IP != b[i].IP {
			return false
		}
	}
	return true
}

// Speakers keeps four parts of a SpeakerStatus: its BGP status, whether the node forwards, its interfaces, and the
// states of other members. Many speakers have the same names and subnets, so these are shared.
func Speakers(obj any) (any, error) {
	o, ok := obj.(*v1alpha1.SpeakerStatus)
	if !ok {
		return obj, nil
	}
	o.SetManagedFields(nil)
	members := make([]v1alpha1.MemberStatus, len(o.Status.Members))
	for i, m := range o.Status.Members {
		members[i] = v1alpha1.MemberStatus{Node: unique.Make(m.Node).Value(), State: unique.Make(m.State).Value()}
	}
	interfaces := make([]v1alpha1.InterfaceStatus, len(o.Status.Interfaces))
	for i, in := range o.Status.Interfaces {
		interfaces[i] = v1alpha1.InterfaceStatus{Name: unique.Make(in.Name).Value(), Up: in.Up}
		for _, subnet := range in.Subnets {
			interfaces[i].Subnets = append(interfaces[i].Subnets, unique.Make(subnet).Value())
		}
	}
	o.Status = v1alpha1.SpeakerStatusStatus{
		Interfaces: interfaces,
		DataPlane:  v1alpha1.DataPlaneStatus{Healthy: o.Status.DataPlane.Healthy},
		BGP:        o.Status.BGP, Gateways: o.Status.Gateways, Members: members, Stopped: o.Status.Stopped,
	}
	return o, nil
}

// Objects drops unused fields.
func Objects(obj any) (any, error) {
	if o, err := meta.Accessor(obj); err == nil {
		o.SetManagedFields(nil)
	}
	switch n := obj.(type) {
	case *v1.Service:
		trimService(n)
	case *v1.Namespace:
		n.Annotations = nil
	case *v1.Node:
		n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached = nil, nil, nil
	}
	return obj, nil
}

// maxUnread is the number of annotations without effect that are kept for warnings.
const maxUnread = 11

// trimService keeps what a controller reads of a Service, within its budgets. The authors of Services can write up to
// 256 KiB of annotations.
func trimService(svc *v1.Service) {
	v1alpha1.LimitService(svc)
	unread := slices.DeleteFunc(slices.Sorted(maps.Keys(svc.Annotations)), func(key string) bool {
		group, _, _ := strings.Cut(key, "/")
		return !slices.Contains(Groups, group) || slices.Contains(Annotations, key)
	})
	annotations := v1alpha1.Only(svc.Annotations, Annotations...)
	for _, key := range unread[:min(maxUnread, len(unread))] {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[key] = "" // only its name is read
	}
	svc.Annotations, svc.OwnerReferences = annotations, nil
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer {
		svc.Labels, svc.Spec.Selector = v1alpha1.Only(svc.Labels, v1alpha1.LabelProxy), nil
		if len(svc.Spec.ExternalIPs) == 0 {
			svc.Spec.Ports = nil
		}
	}
}

// Groups are those of annotations that an author may expect to have an effect: IronLB's, and both of MetalLB.
var Groups = []string{"ironlb.io", "metallb.io", "metallb.universe.tf"}

// Annotations are the annotations of a Service that IronLB reads or writes.
var Annotations = []string{
	v1alpha1.AnnotationPool, v1alpha1.AnnotationAddresses, servicerecord.AnnotationSharingKey, servicerecord.AnnotationReallocate,
	v1alpha1.AnnotationScheduler, v1alpha1.AnnotationForwarding, v1alpha1.AnnotationAllocatedFrom, v1alpha1.AnnotationSourceRanges,
	v1alpha1.AnnotationTooLarge, servicerecord.MetallbPool, servicerecord.MetallbAddresses, servicerecord.MetallbSharingKey,
}

var _ cache.TransformFunc = Speakers
