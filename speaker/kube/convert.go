package kube

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/plan"
)

// serviceOf returns what the plan needs of a Service, and false if it is not ours: our controller must have allocated
// its address and told kube-proxy to leave it alone.
func serviceOf(svc *corev1.Service) (plan.Service, bool) {
	from, ours := svc.Annotations[v1alpha1.AnnotationAllocatedFrom]
	if !ours || svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.DeletionTimestamp != nil {
		return plan.Service{}, false
	}
	out := plan.Service{
		Addresses: addresses(svc.Status.LoadBalancer.Ingress, strings.Split(from, ",")),
		Local:     svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		Affinity:  affinity(svc.Spec),
		Created:   svc.CreationTimestamp.Unix(),
	}
	if len(out.Addresses) == 0 {
		return plan.Service{}, false
	}
	for _, p := range svc.Spec.Ports {
		if number, ok := port(p.Port); ok {
			out.Ports = append(out.Ports, plan.Port{Name: p.Name, Protocol: protocol(p.Protocol), Port: number})
		}
	}
	return out, true
}

// addresses returns those addresses of the status that kube-proxy leaves to us, each with its pool: the annotation names
// the pools in the order of the addresses.
func addresses(ingress []corev1.LoadBalancerIngress, from []string) []plan.Address {
	var out []plan.Address
	for i, in := range ingress {
		ip, err := netip.ParseAddr(in.IP)
		if err != nil || in.IPMode == nil || *in.IPMode != corev1.LoadBalancerIPModeProxy {
			continue
		}
		a := plan.Address{IP: ip.Unmap()}
		if i < len(from) {
			a.Pool = strings.TrimSpace(from[i])
		}
		out = append(out, a)
	}
	return out
}

// affinity returns the time-out of session affinity in seconds, 0 for none.
func affinity(spec corev1.ServiceSpec) uint32 {
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return uint32(max(1, *c.ClientIP.TimeoutSeconds))
	}
	return uint32(corev1.DefaultClientIPServiceAffinitySeconds)
}

// protocol returns the IP protocol number, 0 for one that IPVS does not know.
func protocol(p corev1.Protocol) ipvs.Protocol {
	switch p {
	case corev1.ProtocolTCP, "":
		return ipvs.TCP
	case corev1.ProtocolUDP:
		return ipvs.UDP
	case corev1.ProtocolSCTP:
		return ipvs.SCTP
	}
	return 0
}

func port(n int32) (uint16, bool) { return uint16(n), n > 0 && n <= 65535 }

// sliceOf returns what the plan needs of an EndpointSlice. Of an endpoint's addresses only the first counts, as for
// kube-proxy; ports without a name or a number are left out (ipvs.md 1.6.2, 3.4).
func sliceOf(slice *discoveryv1.EndpointSlice) plan.Slice {
	var out plan.Slice
	for _, p := range slice.Ports {
		if p.Name == nil || p.Port == nil {
			continue
		}
		if number, ok := port(*p.Port); ok {
			out.Ports = append(out.Ports, plan.Port{Name: *p.Name, Protocol: protocol(value(p.Protocol, "")), Port: number})
		}
	}
	for _, e := range slice.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(e.Addresses[0])
		if err != nil {
			continue // a host name
		}
		out.Endpoints = append(out.Endpoints, plan.Endpoint{
			Addr:        addr.Unmap(),
			Node:        value(e.NodeName, ""),
			Ready:       value(e.Conditions.Ready, true),
			Serving:     value(e.Conditions.Serving, true),
			Terminating: value(e.Conditions.Terminating, false),
		})
	}
	return out
}

func value[T any](p *T, unset T) T {
	if p == nil {
		return unset
	}
	return *p
}

func nodeOf(node *corev1.Node) plan.Node {
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return plan.Node{Ready: ready && node.DeletionTimestamp == nil, Labels: node.Labels}
}

func vipOf(vip *v1alpha1.VirtualIP) plan.VIP {
	out := plan.VIP{Nodes: vip.Spec.Nodes, Holder: vip.Status.Node}
	for _, text := range vip.Spec.Addresses {
		if addr, err := netip.ParseAddr(text); err == nil {
			out.Addresses = append(out.Addresses, addr.Unmap())
		}
	}
	for _, ref := range vip.Spec.Services {
		out.Services = append(out.Services, pools.ServiceKey{Namespace: ref.Namespace, Name: ref.Name})
	}
	return out
}

func advertisementOf(ad *v1alpha1.L2Advertisement) plan.Advertisement {
	out := plan.Advertisement{Pools: ad.Spec.IPAddressPools, Interfaces: ad.Spec.Interfaces}
	for i := range ad.Spec.NodeSelectors {
		sel, _ := v1alpha1.SelectorOf(&ad.Spec.NodeSelectors[i]) // one that cannot be read matches nothing: the controller says so
		out.Nodes = append(out.Nodes, sel)
	}
	return out
}
