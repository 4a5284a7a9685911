package watch

import (
	"unique"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

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
		delete(n.Annotations, v1.LastAppliedConfigAnnotation)
	case *v1.Node:
		n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached = nil, nil, nil
	}
	return obj, nil
}

var _ cache.TransformFunc = Speakers
