package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
)

const (
	labelProxy = v1alpha1.LabelProxy
	proxyName  = v1alpha1.ProxyName
)

// served is a Service from the view of this node.
type served struct {
	// here is set if the Service is served or announced here, as described by service.
	here    bool
	service view.Service
	// other is set if a proxy other than IronLB or kube-proxy serves it.
	other bool
}

// ServiceOptions are the settings of this process that affect Services.
type ServiceOptions struct {
	// ServiceProxy means that every Service is served here.
	ServiceProxy bool
	// Forwarding is how the LoadBalancer addresses of Services without the annotation are forwarded; empty means
	// [v1alpha1.ForwardingPod].
	Forwarding v1alpha1.Forwarding
}

// serviceOf returns the parts of a Service that the plan uses. A Service is fully served here if it is labelled so, or
// if it has no such label and this is the service proxy. For other Services only the addresses assigned by IronLB's
// controller count (docs/design/data-plane.md).
func serviceOf(svc *corev1.Service, o ServiceOptions) served {
	proxy, labelled := svc.Labels[labelProxy]
	out := served{other: labelled && proxy != proxyName && !headless(svc)}
	full := (o.ServiceProxy && !labelled || labelled && proxy == proxyName) && !headless(svc)
	addresses := addresses(svc, full)
	if len(addresses) == 0 {
		return out
	}
	out.here = true
	out.service = view.Service{
		Addresses:     addresses,
		Ports:         ports(svc.Spec.Ports),
		Local:         svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		InternalLocal: value(svc.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal,
		Families:      families(svc.Spec.ClusterIPs),
		NodePorts:     full,
		Affinity:      affinity(svc.Spec),
		Created:       svc.CreationTimestamp.Unix(),
		TooLarge:      svc.Annotations[v1alpha1.AnnotationTooLarge] != "",
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		loadBalancer(&out.service, svc, o.Forwarding)
	}
	if s, err := v1alpha1.ParseScheduler(svc.Annotations[v1alpha1.AnnotationScheduler]); err == nil { // else the controller reports it
		out.service.Scheduler, out.service.Flags = s.Name, flags(s)
	}
	return out
}

// headless reports whether a Service has no ClusterIP and so no proxy.
func headless(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone
}

// loadBalancer adds what only a Service of type LoadBalancer has. Forwarding through the nodes requires a NodePort for
// every port.
func loadBalancer(out *view.Service, svc *corev1.Service, byDefault v1alpha1.Forwarding) {
	out.Labels = svc.Labels
	ranges := v1alpha1.ParseSourceRanges(svc.Spec.LoadBalancerSourceRanges, svc.Annotations[v1alpha1.AnnotationSourceRanges])
	out.Restricted, out.Sources = ranges.Given, ranges.Prefixes
	if out.Local {
		out.HealthCheckNodePort, _ = port(svc.Spec.HealthCheckNodePort)
	}
	forwarding, _ := v1alpha1.ParseForwarding(svc.Annotations[v1alpha1.AnnotationForwarding], byDefault)
	bare := slices.ContainsFunc(out.Ports, func(p view.Port) bool { return p.NodePort == 0 })
	switch {
	case forwarding == v1alpha1.ForwardingNodePort && !bare:
		out.Forwarding = view.ToNodePort
	case forwarding == v1alpha1.ForwardingDirect:
		out.Forwarding = view.Direct
	}
}

// addresses returns the addresses of a Service that are served or announced here, each once.
func addresses(svc *corev1.Service, full bool) []view.Address {
	var out []view.Address
	records, ours := v1alpha1.RecordsOf(svc)
	add := func(text string, a view.Address) {
		ip, err := netip.ParseAddr(text)
		if a.IP = ip.Unmap(); err != nil || ip.Zone() != "" || slices.ContainsFunc(out, func(b view.Address) bool { return b.IP == a.IP }) {
			return
		}
		if a.Kind == view.LoadBalancer {
			a.Pool, _ = v1alpha1.PoolOf(records, a.IP)
		}
		out = append(out, a)
	}
	if full {
		for _, ip := range svc.Spec.ClusterIPs {
			add(ip, view.Address{Kind: view.ClusterIP})
		}
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil {
		for _, in := range svc.Status.LoadBalancer.Ingress {
			proxyMode := value(in.IPMode, corev1.LoadBalancerIPModeVIP) == corev1.LoadBalancerIPModeProxy
			switch {
			case ours: // of either mode; alongside kube-proxy, kube-proxy forwards those of mode VIP
				add(in.IP, view.Address{AnnounceOnly: !full && !proxyMode})
			case full && !proxyMode:
				add(in.IP, view.Address{Kind: view.Foreign})
			}
		}
	}
	if full {
		for _, ip := range svc.Spec.ExternalIPs {
			add(ip, view.Address{Kind: view.External})
		}
	}
	return out
}

func ports(from []corev1.ServicePort) []view.Port {
	var out []view.Port
	for _, p := range from {
		if number, ok := port(p.Port); ok {
			nodePort, _ := port(p.NodePort)
			out = append(out, view.Port{Name: p.Name, Protocol: protocol(p.Protocol), Port: number, NodePort: nodePort})
		}
	}
	return out
}

// families returns the families of the ClusterIPs.
func families(clusterIPs []string) view.Families {
	four, six := false, false
	for _, text := range clusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil {
			four, six = four || ip.Is4(), six || ip.Is6()
		}
	}
	switch {
	case four && !six:
		return view.OnlyIPv4
	case six && !four:
		return view.OnlyIPv6
	}
	return 0
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

func flags(s v1alpha1.Scheduler) ipvs.Flags {
	var out ipvs.Flags
	if s.Fallback {
		out |= ipvs.SchedFallback
	}
	if s.Port {
		out |= ipvs.SchedPort
	}
	return out
}
