package kube

import (
	"encoding/json"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// trim cuts an object down to the fields that this package reads, before the informer stores it: a node of a large
// cluster keeps thousands of them. It changes the object in place, since it is not shared yet. It is idempotent.
func trim(obj any) (any, error) {
	switch o := obj.(type) {
	case *discoveryv1.EndpointSlice:
		trimSlice(o)
	case *corev1.Node:
		trimNode(o)
	case *networkingv1.ServiceCIDR:
		trimMeta(&o.ObjectMeta)
		o.Status = networkingv1.ServiceCIDRStatus{}
	case *v1alpha1.VirtualIP:
		trimMeta(&o.ObjectMeta)
	case *v1alpha1.SpeakerStatus:
		trimMeta(&o.ObjectMeta)
	case *v1alpha1.L2Advertisement:
		trimMeta(&o.ObjectMeta)
	case *v1alpha1.IPAddressPool:
		trimMeta(&o.ObjectMeta)
		o.Spec = inForce(o)
		o.Status = v1alpha1.IPAddressPoolStatus{}
	case *v1alpha1.BGPPeer:
		trimMeta(&o.ObjectMeta)
		o.Status = v1alpha1.BGPPeerStatus{LastBFDProfile: o.Status.LastBFDProfile}
	case *v1alpha1.BGPAdvertisement:
		trimMeta(&o.ObjectMeta)
		o.Status = v1alpha1.BGPAdvertisementStatus{}
	case *v1alpha1.BFDProfile:
		trimMeta(&o.ObjectMeta)
	case *v1alpha1.Community:
		trimMeta(&o.ObjectMeta)
	case *corev1.Secret:
		trimSecret(o)
	}
	return obj, nil
}

// inForce returns the fields of a pool in force for ironlb-ccm: those of its spec or, if that is invalid, of the last
// valid one (ccm/addresspool). It is called before the trim, since other fields make a spec invalid, too. Without a
// valid one it returns those of the spec.
func inForce(pool *v1alpha1.IPAddressPool) v1alpha1.IPAddressPoolSpec {
	own := v1alpha1.IPAddressPoolSpec{Addresses: pool.Spec.Addresses, ReturnRoutes: pool.Spec.ReturnRoutes}
	if _, err := v1alpha1.ParsePool(pool); err == nil {
		return own
	}
	var last v1alpha1.IPAddressPool
	if err := json.Unmarshal([]byte(pool.Status.LastGood), &last.Spec); err != nil {
		return own
	}
	if _, err := v1alpha1.ParsePool(&last); err != nil {
		return own
	}
	return v1alpha1.IPAddressPoolSpec{Addresses: last.Spec.Addresses, ReturnRoutes: last.Spec.ReturnRoutes}
}

// annotations are the relevant annotations of a Service.
var annotations = []string{
	v1alpha1.AnnotationAllocatedFrom, v1alpha1.AnnotationScheduler, v1alpha1.AnnotationForwarding, v1alpha1.AnnotationSourceRanges,
	v1alpha1.AnnotationTooLarge,
}

// trimService returns the trim of Services. A Service that is not served here keeps little more than its name.
func trimService(o ServiceOptions) cache.TransformFunc {
	return func(obj any) (any, error) {
		svc, ok := obj.(*corev1.Service)
		if !ok {
			return obj, nil // a tombstone
		}
		v1alpha1.LimitService(svc)
		svc.Annotations = v1alpha1.Only(svc.Annotations, annotations...)
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer { // advertisements select some of those
			svc.Labels = v1alpha1.Only(svc.Labels, labelProxy)
		}
		kept := svc.Annotations
		trimMeta(&svc.ObjectMeta)
		svc.Annotations = kept
		svc.Spec.Selector, svc.Spec.LoadBalancerClass = nil, nil
		svc.Status.Conditions = trimConditions(svc.Status.Conditions)
		if !serviceOf(svc, o).here {
			svc.Annotations, svc.Labels = nil, v1alpha1.Only(svc.Labels, labelProxy)
			svc.Spec = corev1.ServiceSpec{Type: svc.Spec.Type, ClusterIP: svc.Spec.ClusterIP}
			svc.Status = corev1.ServiceStatus{}
		}
		return svc, nil
	}
}

// trimConditions keeps the record of addresses, else the condition that marks a Service as ours.
func trimConditions(conditions []metav1.Condition) []metav1.Condition {
	for _, kind := range []string{v1alpha1.ConditionAddresses, v1alpha1.ConditionAllocated} {
		for _, c := range conditions {
			if c.Type == kind {
				return []metav1.Condition{{Type: c.Type, Message: c.Message}}
			}
		}
	}
	return nil
}

func trimSlice(o *discoveryv1.EndpointSlice) {
	service := o.Labels[discoveryv1.LabelServiceName]
	trimMeta(&o.ObjectMeta)
	o.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	for i := range o.Ports {
		o.Ports[i].AppProtocol = nil
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		e.TargetRef, e.Zone, e.Hostname, e.DeprecatedTopology = nil, nil, nil, nil
		e.Addresses = e.Addresses[:min(1, len(e.Addresses))]
		if e.NodeName != nil { // the same few names repeat
			name := unique.Make(*e.NodeName).Value()
			e.NodeName = &name
		}
		trimHints(e.Hints)
	}
}

func trimHints(h *discoveryv1.EndpointHints) {
	if h == nil {
		return
	}
	for i := range h.ForNodes {
		h.ForNodes[i].Name = unique.Make(h.ForNodes[i].Name).Value()
	}
	for i := range h.ForZones {
		h.ForZones[i].Name = unique.Make(h.ForZones[i].Name).Value()
	}
}

func trimNode(o *corev1.Node) {
	conditions, addresses := o.Status.Conditions, o.Status.Addresses
	trimMeta(&o.ObjectMeta)
	o.Spec = corev1.NodeSpec{PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs, Unschedulable: o.Spec.Unschedulable,
		Taints: slices.DeleteFunc(o.Spec.Taints, func(t corev1.Taint) bool { return !slices.Contains(taints, t.Key) })}
	o.Status = corev1.NodeStatus{}
	for _, a := range addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			o.Status.Addresses = append(o.Status.Addresses, a)
		}
	}
	for _, c := range conditions {
		if c.Type == corev1.NodeNetworkUnavailable || c.Type == corev1.NodeReady {
			left := corev1.NodeCondition{Type: c.Type, Status: c.Status}
			if shutsDown(c) {
				left.Reason, left.Message = c.Reason, c.Message
			}
			o.Status.Conditions = append(o.Status.Conditions, left)
		}
	}
}

// trimSecret keeps only the password.
func trimSecret(o *corev1.Secret) {
	trimMeta(&o.ObjectMeta)
	o.Labels, o.StringData = nil, nil
	for key := range o.Data {
		if key != corev1.BasicAuthPasswordKey {
			delete(o.Data, key)
		}
	}
}

func trimMeta(m *metav1.ObjectMeta) {
	m.ManagedFields, m.Annotations, m.OwnerReferences, m.Finalizers = nil, nil, nil, nil
}
