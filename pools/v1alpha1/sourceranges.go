package v1alpha1

import (
	"net/netip"
	"slices"
	"strings"
)

// AnnotationSourceRanges gives source ranges, separated by commas, to a Service that has no
// spec.loadBalancerSourceRanges. It is Kubernetes' own (k8s.io/api/core/v1, AnnotationLoadBalancerSourceRangesKey).
const AnnotationSourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"

// SourceRanges selects who may connect to a Service's LoadBalancer addresses.
//
// +kubebuilder:object:generate=false
type SourceRanges struct {
	// Given is set if there was any range, readable or not. Without, every client may connect; with, only Prefixes:
	// a family without ranges is closed.
	Given bool
	// Prefixes are masked, sorted, and each is there once.
	Prefixes []netip.Prefix
	// Unreadable are the texts that are no CIDRs.
	Unreadable []string
}

// ParseSourceRanges reads spec.loadBalancerSourceRanges, or the annotation if that is empty.
func ParseSourceRanges(spec []string, annotation string) SourceRanges {
	texts := spec
	if len(texts) == 0 {
		texts = strings.Split(annotation, ",")
	}
	var out SourceRanges
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if text == "" {
			continue // what a comma too many leaves
		}
		out.Given = true
		if prefix, err := netip.ParsePrefix(text); err == nil && unmap(prefix).IsValid() {
			out.Prefixes = append(out.Prefixes, unmap(prefix))
		} else {
			out.Unreadable = append(out.Unreadable, text)
		}
	}
	slices.SortFunc(out.Prefixes, netip.Prefix.Compare)
	out.Prefixes = slices.Compact(out.Prefixes)
	return out
}

// unmap returns the prefix masked, an IPv4 one that was written as IPv6 (::ffff:0:0/96) as what it is. One that holds
// more than IPv4 in that form is not valid.
func unmap(p netip.Prefix) netip.Prefix {
	if !p.Addr().Is4In6() {
		return p.Masked()
	}
	return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Masked()
}

// Accepts reports whether the ranges accept any client of the address's family.
func (r SourceRanges) Accepts(addr netip.Addr) bool {
	return !r.Given || slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() == addr.Is4() })
}
