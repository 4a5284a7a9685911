package servicerecord

import (
	v1 "k8s.io/api/core/v1"
)

// Scope states which Services IronLB serves, and how their status shows the addresses.
type Scope struct {
	// Class is IronLB's spec.loadBalancerClass.
	Class string
	// OnlyClass ignores Services without a class.
	OnlyClass bool
	// IPMode is the mode of every address in the status: Proxy or VIP.
	IPMode string
}

// DefaultScope includes Services without a class.
func DefaultScope() Scope {
	return Scope{Class: "ironlb.io/lb", IPMode: string(v1.LoadBalancerIPModeProxy)}
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

// HasClass reports whether the Service is a load balancer with a class, IronLB's or another one.
func HasClass(svc *v1.Service) bool { return Balanced(svc) && svc.Spec.LoadBalancerClass != nil }

// Balanced reports whether the Service is a load balancer that is not being deleted.
func Balanced(svc *v1.Service) bool {
	return svc.Spec.Type == v1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil
}
