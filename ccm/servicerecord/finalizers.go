package servicerecord

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	servicehelper "k8s.io/cloud-provider/service/helpers"
)

// Finalizer keeps a Service of IronLB's class until its address is withdrawn. The service controller uses another
// Finalizer.
const Finalizer = "ironlb.io/load-balancer"

// FinalizerOf returns the finalizer that keeps the Service until it is cleaned up: the service controller's without a
// class, else IronLB's own.
func FinalizerOf(svc *v1.Service) string {
	if svc.Spec.LoadBalancerClass == nil {
		return servicehelper.LoadBalancerCleanupFinalizer
	}
	return Finalizer
}

// HasFinalizer reports whether the Service has the finalizer.
func HasFinalizer(svc *v1.Service, finalizer string) bool {
	return slices.Contains(svc.Finalizers, finalizer)
}
