package kube

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// trim cuts an object down to what this package reads, before the informer stores it: a node of a large cluster keeps
// thousands of them. It changes the object in place, for nobody else has it yet. Trimming twice is trimming once.
func trim(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Service:
		from, ours := o.Annotations[v1alpha1.AnnotationAllocatedFrom]
		trimMeta(&o.ObjectMeta)
		o.Labels = nil
		if ours {
			o.Annotations = map[string]string{v1alpha1.AnnotationAllocatedFrom: from}
		}
		o.Spec.Selector = nil
		o.Status.Conditions = nil
	case *discoveryv1.EndpointSlice:
		service := o.Labels[discoveryv1.LabelServiceName]
		trimMeta(&o.ObjectMeta)
		o.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			e.TargetRef, e.Hints, e.Zone, e.Hostname, e.DeprecatedTopology = nil, nil, nil, nil, nil
		}
	case *corev1.Node:
		conditions := o.Status.Conditions
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.NodeSpec{}
		o.Status = corev1.NodeStatus{}
		for _, c := range conditions {
			if c.Type == corev1.NodeReady {
				o.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
			}
		}
	case *v1alpha1.VirtualIP:
		trimMeta(&o.ObjectMeta)
	case *v1alpha1.L2Advertisement:
		trimMeta(&o.ObjectMeta)
	}
	return obj, nil
}

func trimMeta(m *metav1.ObjectMeta) {
	m.ManagedFields, m.Annotations, m.OwnerReferences, m.Finalizers = nil, nil, nil, nil
}
