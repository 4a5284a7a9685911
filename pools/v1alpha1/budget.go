package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Budgets of one Service. Its author may write more than a node can hold: a small Service of 2,000 ports and 2,000
// source ranges is 4,000,000 elements of the packet filter. They bound one Service; ResourceQuotas bound the number of
// Services.
const (
	// MaxServiceEntries is the number of ports times the number of addresses and source ranges.
	MaxServiceEntries = 8192
	// MaxServiceBytes is the size of its ports, addresses, source ranges, labels, selector and finalizers.
	MaxServiceBytes = 64 << 10
	// MaxAnnotation is the length of an annotation in the caches, except for source ranges.
	MaxAnnotation = 1024
	// keptAddresses is the number of external IPs, and of addresses in the status, of a Service that is too large,
	// keptFinalizers that of finalizers of others.
	keptAddresses  = 1024
	keptFinalizers = 8
)

// AnnotationTooLarge marks a Service that exceeds a budget, in the caches only. Its value is the message for the
// author.
const AnnotationTooLarge = "ironlb.io/too-large"

// ReasonTooLarge is the reason of a Service that is not served because it exceeds a budget.
const ReasonTooLarge = "TooLarge"

// LimitService cuts a Service that exceeds a budget down to its name, type, class and addresses, and marks it, before
// it is cached. Without ports it is not served. It is idempotent.
func LimitService(svc *corev1.Service) {
	why := tooLarge(svc)
	if why == "" {
		return
	}
	spec := &svc.Spec
	svc.Annotations = Only(svc.Annotations, AnnotationAllocatedFrom)
	if svc.Annotations == nil {
		svc.Annotations = map[string]string{}
	}
	svc.Annotations[AnnotationTooLarge] = why
	svc.Labels = Only(svc.Labels, LabelProxy)
	*spec = corev1.ServiceSpec{
		Type: spec.Type, LoadBalancerClass: spec.LoadBalancerClass, ClusterIP: spec.ClusterIP, ClusterIPs: spec.ClusterIPs,
		IPFamilies: spec.IPFamilies, IPFamilyPolicy: spec.IPFamilyPolicy, ExternalTrafficPolicy: spec.ExternalTrafficPolicy,
		ExternalIPs: first(spec.ExternalIPs, keptAddresses),
	}
	svc.Status.LoadBalancer.Ingress = first(svc.Status.LoadBalancer.Ingress, keptAddresses)
	others := 0
	svc.Finalizers = slices.Clone(slices.DeleteFunc(svc.Finalizers, func(f string) bool {
		if group, _, _ := strings.Cut(f, "/"); group == "ironlb.io" || group == "service.kubernetes.io" {
			return false
		}
		others++
		return others > keptFinalizers
	}))
}

// first returns the first n at most, without the memory of the others.
func first[T any](all []T, n int) []T { return slices.Clone(all[:min(n, len(all))]) }

// tooLarge returns the message for the author, empty for a Service within the budgets.
func tooLarge(svc *corev1.Service) string {
	spec, annotation := &svc.Spec, svc.Annotations[AnnotationSourceRanges]
	addresses := len(spec.ClusterIPs) + len(spec.ExternalIPs) + len(svc.Status.LoadBalancer.Ingress)
	ranges := len(spec.LoadBalancerSourceRanges)
	if ranges == 0 && annotation != "" {
		ranges = strings.Count(annotation, ",") + 1
	}
	if len(spec.Ports)*max(1, addresses+ranges) > MaxServiceEntries { // the message stays the same when it gets an address
		return fmt.Sprintf("The Service is not served: its ports (%d) times its source ranges (%d) and addresses are more than %d. "+
			"Use fewer source ranges, or divide the ports among several Services", len(spec.Ports), ranges, MaxServiceEntries)
	}
	kept := corev1.Service{
		Spec:   corev1.ServiceSpec{Ports: spec.Ports, Selector: spec.Selector, ExternalIPs: spec.ExternalIPs, LoadBalancerSourceRanges: spec.LoadBalancerSourceRanges},
		Status: corev1.ServiceStatus{LoadBalancer: svc.Status.LoadBalancer},
	}
	kept.Labels, kept.Finalizers = svc.Labels, svc.Finalizers
	if kept.Size()+len(annotation) > MaxServiceBytes {
		return fmt.Sprintf("The Service is not served: its ports, addresses, source ranges, labels, selector and finalizers have more than %d bytes. "+
			"Divide them among several Services", MaxServiceBytes)
	}
	return ""
}

// Only returns the entries of m with the keys, nil for none. Values other than source ranges are cut at MaxAnnotation.
func Only(m map[string]string, keys ...string) map[string]string {
	var out map[string]string
	for _, key := range keys {
		value, ok := m[key]
		if !ok {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		if key != AnnotationSourceRanges && len(value) > MaxAnnotation {
			value = strings.Clone(value[:MaxAnnotation])
		}
		out[key] = value
	}
	return out
}
