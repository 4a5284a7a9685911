package servicerecord

import (
	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Scope states which Services IronLB serves, and how their status shows the addresses.
type Scope struct {
	// Class is IronLB's spec.loadBalancerClass.
	Class string
	// OnlyClass ignores Services without a class.
	OnlyClass bool
	// IPMode is the mode of every address in the status: Proxy or VIP.
	IPMode string
	// Forwarding is that of Services without the annotation: pod or direct.
	Forwarding v1alpha1.Forwarding
}

// DefaultScope includes Services without a class.
func DefaultScope() Scope {
	return Scope{Class: "ironlb.io/lb", IPMode: string(v1.LoadBalancerIPModeProxy), Forwarding: v1alpha1.ForwardingPod}
}

// Wants reports whether the Service is to be served by IronLB.
func (s *Scope) Wants(svc *v1.Service) bool { return s.Classless(svc) || s.Classed(svc) }

// Classless reports whether the Service is served through cloud-provider's service controller.
func (s *Scope) Classless(svc *v1.Service) bool {
	return !s.OnlyClass && Balanced(svc) && svc.Spec.LoadBalancerClass == nil
}

// Classed reports whether the Service is served by the class controller.
func (s *Scope) Classed(svc *v1.Service) bool {
	return Balanced(svc) && svc.Spec.LoadBalancerClass != nil && *svc.Spec.LoadBalancerClass == s.Class
}

// ForwardingOf returns how the addresses of a Service are forwarded. Where kube-proxy serves them, they are not
// directed.
func (s *Scope) ForwardingOf(svc *v1.Service) v1alpha1.Forwarding {
	f, _ := v1alpha1.ParseForwarding(svc.Annotations[v1alpha1.AnnotationForwarding], s.Forwarding) // the warnings report the error
	if f == v1alpha1.ForwardingDirect && s.IPMode == string(v1.LoadBalancerIPModeVIP) {
		return v1alpha1.ForwardingPod
	}
	return f
}

// HasClass reports whether the Service is a load balancer with a class, IronLB's or another one.
func HasClass(svc *v1.Service) bool { return Balanced(svc) && svc.Spec.LoadBalancerClass != nil }

// Balanced reports whether the Service is a load balancer that is not being deleted.
func Balanced(svc *v1.Service) bool {
	return svc.Spec.Type == v1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil
}
