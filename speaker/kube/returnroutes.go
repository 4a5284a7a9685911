package kube

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
)

// returnRoutesOf returns the status of the return routes.
func returnRoutesOf(all []view.PoolReturn) (out []v1alpha1.ReturnRouteStatus) {
	for _, r := range all[:min(len(all), v1alpha1.MaxReturnRouteStatuses)] {
		status := v1alpha1.ReturnRouteStatus{
			Pool: r.Pool, Family: corev1.IPv6Protocol, Interface: r.Interface, InEffect: r.InEffect, Message: r.Missing,
		}
		if r.IPv4 {
			status.Family = corev1.IPv4Protocol
		}
		if r.Gateway.IsValid() {
			status.Gateway = r.Gateway.String()
			if !r.InEffect {
				status.Message = "the route is not in effect: see dataPlane.message"
			}
		}
		out = append(out, status)
	}
	return out
}
