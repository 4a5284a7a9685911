package servicerecord

import (
	v1 "k8s.io/api/core/v1"
	servicehelper "k8s.io/cloud-provider/service/helpers"
)

// Finalizer keeps a Service of IronLB's class until its address is withdrawn. The service controller uses another
// Finalizer.
const Finalizer = "ironlb.io/load-balancer"

// FinalizersOn lists the finalizers to remove from the Service: IronLB's own and, if shared, the service controller's.
// The latter is included if that controller does not run (onlyClass) and the Service has IronLB's record.
func FinalizersOn(svc *v1.Service, onlyClass, shared bool) []string {
	var on []string
	if HasFinalizer(svc, Finalizer) {
		on = append(on, Finalizer)
	}
	if shared && onlyClass && Recorded(svc) && servicehelper.HasLBFinalizer(svc) {
		on = append(on, servicehelper.LoadBalancerCleanupFinalizer)
	}
	return on
}
