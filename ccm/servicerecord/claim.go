package servicerecord

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

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
// replaced them. A Service that is no longer served has lost nothing
// (previouslymanaged.go).
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
