package watch

import (
	"maps"
	"slices"
	"strings"
	"unique"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

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
