package servicerecord

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ironlb/ironlb/pools"
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

// ClaimOf parses what the Service requests and what it holds by its own record. It never fails: an unparsable field
// makes the claim Invalid.
func (s *Scope) ClaimOf(svc *v1.Service) pools.Claim {
	c := pools.Claim{
		Service: KeyOf(svc),
		Created: svc.CreationTimestamp.Time,
		Labels:  svc.Labels,
		// Forwarded directly, any node can announce the address, wherever the Pods are.
		Local: svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal && s.ForwardingOf(svc) != v1alpha1.ForwardingDirect,
		Held:  s.HeldBy(svc),
		Lost:  s.lostBy(svc),
	}
	RequestReallocation(&c, RequestedReallocation(svc), reallocationIn(svc))
	for _, f := range svc.Spec.IPFamilies {
		if f == v1.IPv6Protocol {
			c.Families = append(c.Families, pools.IPv6)
		} else {
			c.Families = append(c.Families, pools.IPv4)
		}
	}
	if p := svc.Spec.IPFamilyPolicy; p != nil {
		switch *p {
		case v1.IPFamilyPolicyPreferDualStack:
			c.Policy = pools.PreferDualStack
		case v1.IPFamilyPolicyRequireDualStack:
			c.Policy = pools.RequireDualStack
		}
	}
	for _, p := range svc.Spec.Ports {
		c.Ports = append(c.Ports, pools.Port{Protocol: string(p.Protocol), Number: uint16(p.Port)})
	}
	if len(svc.Spec.Selector) > 0 {
		c.Selector = labels.Set(svc.Spec.Selector).String() // sorted by key
	}

	var bad []string
	c.Pool = annotated(svc, v1alpha1.AnnotationPool, MetallbPool, &bad)
	c.SharingKey = annotated(svc, AnnotationSharingKey, MetallbSharingKey, &bad)
	c.Addresses = requestedAddresses(svc, &bad)
	c.Invalid = strings.Join(bad, "; ")
	if !s.Wants(svc) {
		return UnchangedClaim(c, c.Held)
	}
	return c
}

// HeldBy returns the addresses of the Service's status that IronLB recorded as its own. A Service that was never served
// holds nothing.
func (s *Scope) HeldBy(svc *v1.Service) []pools.Address {
	if !Balanced(svc) {
		return nil
	}
	var held []pools.Address
	for _, in := range svc.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(in.IP)
		if err != nil {
			continue // a host name: another controller's
		}
		pool, named := RecordedFor(svc, a)
		if !s.Wants(svc) && !named {
			continue
		}
		held = append(held, pools.Address{Addr: a, Pool: pool})
	}
	return held
}

// lostBy returns the addresses in IronLB's record of a Service that its status does not show: another writer wiped or
// replaced them. A previously managed Service has lost nothing.
func (s *Scope) lostBy(svc *v1.Service) []pools.Address {
	if !s.Wants(svc) {
		return nil
	}
	shown := IngressOf(svc)
	records, _ := v1alpha1.RecordsOf(svc)
	var lost []pools.Address
	for _, r := range records {
		if !slices.Contains(shown, r.Addr) {
			lost = append(lost, pools.Address{Addr: r.Addr, Pool: r.Pool})
		}
	}
	return lost
}

// maxText is the maximum length in bytes of a tenant's text that requests an address. It is copied into messages,
// conditions and the state kept per Service.
const maxText = 253

// bounded returns the text of a field without surrounding space, or nothing if it is too long.
func bounded(field, text string, bad *[]string) string {
	if text = strings.TrimSpace(text); len(text) > maxText {
		*bad = append(*bad, fmt.Sprintf("%s has %d characters: write %d at most", field, len(text), maxText))
		return ""
	}
	return text
}

// annotated reads one of IronLB's annotations or its synonym. Different values in both are a contradiction.
func annotated(svc *v1.Service, ours, synonym string, bad *[]string) string {
	a := bounded("annotation "+ours, svc.Annotations[ours], bad)
	b := bounded("annotation "+synonym, svc.Annotations[synonym], bad)
	if a != "" && b != "" && a != b {
		*bad = append(*bad, fmt.Sprintf("annotation %s is %q, but annotation %s is %q: remove one of them", ours, a, synonym, b))
	}
	return cmp.Or(a, b)
}

// requestedAddresses parses the addresses requested by annotation, by its synonym or by spec.loadBalancerIP. All given
// fields must name the same addresses, in any notation.
func requestedAddresses(svc *v1.Service, bad *[]string) []netip.Addr {
	var first, text string // the field read first, and its text
	var requested []netip.Addr
	for _, f := range []struct{ name, text string }{
		{"annotation " + v1alpha1.AnnotationAddresses, svc.Annotations[v1alpha1.AnnotationAddresses]},
		{"annotation " + MetallbAddresses, svc.Annotations[MetallbAddresses]},
		{"spec.loadBalancerIP", svc.Spec.LoadBalancerIP},
	} {
		if f.text = bounded(f.name, f.text, bad); f.text == "" {
			continue
		}
		also := parseAddresses(f.text, f.name, bad)
		switch {
		case first == "":
			first, text, requested = f.name, f.text, also
		case !sameSet(requested, also):
			*bad = append(*bad, fmt.Sprintf("%s is %q, but %s is %q: remove one of them", first, text, f.name, f.text))
		}
	}
	return requested
}

// RequestedBy returns the addresses that the Service requests.
func RequestedBy(svc *v1.Service) []netip.Addr {
	var bad []string
	return requestedAddresses(svc, &bad)
}

func sameSet(a, b []netip.Addr) bool {
	lacks := func(list []netip.Addr) func(netip.Addr) bool {
		return func(x netip.Addr) bool { return !slices.Contains(list, x) }
	}
	return !slices.ContainsFunc(a, lacks(b)) && !slices.ContainsFunc(b, lacks(a))
}

// parseAddresses parses a comma-separated list. Unparsable entries are reported in bad.
func parseAddresses(text, field string, bad *[]string) []netip.Addr {
	var out []netip.Addr
	for s := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil || a.Zone() != "" {
			*bad = append(*bad, fmt.Sprintf("%s: %q is not an IP address: write one like 192.0.2.1 or 2001:db8::1", field, strings.TrimSpace(s)))
			continue
		}
		out = append(out, a.Unmap())
	}
	return out
}
