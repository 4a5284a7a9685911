package servicerecord

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
	servicehelper "k8s.io/cloud-provider/service/helpers"

	"github.com/ironlb/ironlb/pools"
)

// Unrecorded reports whether the Service shows an ingress without IronLB's record of it.
func Unrecorded(svc *v1.Service) bool {
	have := OutcomeIn(svc)
	return len(have.Ingress) > 0 && !Recorded(svc)
}

// IngressOf lists the addresses in the Service's status.
func IngressOf(svc *v1.Service) []netip.Addr {
	var out []netip.Addr
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// Recorded reports whether the Service has a record of IronLB, which its author cannot write.
func Recorded(svc *v1.Service) bool {
	have := OutcomeIn(svc)
	return have.Record != "" || have.Condition.Type != ""
}

// UnchangedClaim is the claim of a Service that must not change, whatever it requests: a move would never be written.
func UnchangedClaim(c pools.Claim, lease []pools.Address) pools.Claim {
	c.Families, c.Policy, c.Addresses = nil, pools.RequireDualStack, nil
	for _, h := range lease {
		c.Families, c.Addresses = append(c.Families, pools.FamilyOf(h.Addr)), append(c.Addresses, h.Addr)
	}
	c.Pool, c.Invalid, c.Reallocate = "", "", false
	return c
}

// IPs lists the addresses of a status.
func IPs(ingress []v1.LoadBalancerIngress) []string {
	var out []string
	for _, in := range ingress {
		out = append(out, in.IP)
	}
	return out
}

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
