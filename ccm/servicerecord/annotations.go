package servicerecord

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools"
)

// Annotations that only the controllers read.
const (
	AnnotationSharingKey = "ironlb.io/sharing-key"
	AnnotationReallocate = "ironlb.io/reallocate"

	// MetalLB's synonyms.
	MetallbPool       = "metallb.io/address-pool"
	MetallbAddresses  = "metallb.io/loadBalancerIPs"
	MetallbSharingKey = "metallb.io/allow-shared-ip"
)

// KeyOf names the Service.
func KeyOf(svc metav1.Object) pools.ServiceKey {
	return pools.ServiceKey{Namespace: svc.GetNamespace(), Name: svc.GetName()}
}
