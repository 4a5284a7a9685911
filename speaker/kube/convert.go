package kube

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
)

// protocol returns the IP protocol number, 0 if IPVS does not support it.
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

// sliceOf returns the parts of an EndpointSlice that the plan uses. As in kube-proxy, only the first address of an
// endpoint counts, and only if it is of the slice's type. Ports without a name or a number are left out.
func sliceOf(slice *discoveryv1.EndpointSlice) view.Slice {
	var out view.Slice
	for _, p := range slice.Ports {
		if p.Name == nil || p.Port == nil {
			continue
		}
		if number, ok := port(*p.Port); ok {
			out.Ports = append(out.Ports, view.Port{Name: *p.Name, Protocol: protocol(value(p.Protocol, "")), Port: number})
		}
	}
	for _, e := range slice.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(e.Addresses[0])
		if addr = addr.Unmap(); err != nil || !ofType(addr, slice.AddressType) {
			continue
		}
		out.Endpoints = append(out.Endpoints, endpointOf(e, addr))
	}
	return out
}

// ofType reports whether the address is of a slice's type; a slice of type FQDN has none.
func ofType(addr netip.Addr, t discoveryv1.AddressType) bool {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return addr.Is4()
	case discoveryv1.AddressTypeIPv6:
		return addr.Is6()
	}
	return false
}

// endpointOf applies the defaults of unset conditions: an endpoint is ready and serving, and does not terminate.
func endpointOf(e discoveryv1.Endpoint, addr netip.Addr) view.Endpoint {
	out := view.Endpoint{
		Addr:        addr,
		Node:        value(e.NodeName, ""),
		Ready:       value(e.Conditions.Ready, true),
		Serving:     value(e.Conditions.Serving, true),
		Terminating: value(e.Conditions.Terminating, false),
	}
	if e.Hints != nil {
		for _, node := range e.Hints.ForNodes {
			out.ForNodes = append(out.ForNodes, node.Name)
		}
		for _, zone := range e.Hints.ForZones {
			out.ForZones = append(out.ForZones, zone.Name)
		}
	}
	return out
}

func value[T any](p *T, unset T) T {
	if p == nil {
		return unset
	}
	return *p
}

// taintLeaving marks a node that the cluster's autoscaler is about to delete.
const taintLeaving = "ToBeDeletedByClusterAutoscaler"

// taints are the relevant taints of a Node.
var taints = []string{taintLeaving, corev1.TaintNodeOutOfService}

// tainted reports whether a Node has a taint.
func tainted(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// shutsDown reports whether a condition is the kubelet's report of a node shutdown (pkg/kubelet/nodestatus/setters.go,
// ReadyCondition, with the result of ShutdownStatus of pkg/kubelet/nodeshutdown).
func shutsDown(c corev1.NodeCondition) bool {
	return c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse && c.Reason == "KubeletNotReady" &&
		strings.Contains(c.Message, "node is shutting down")
}

// excluded reports whether the exclude label is on a Node, and is not false: in k8s.io/cloud-provider its value counts
// since 1.34.
func excluded(node *corev1.Node) bool {
	text, there := node.Labels[corev1.LabelNodeExcludeBalancers]
	yes, err := strconv.ParseBool(text)
	return there && (yes || err != nil)
}

func nodeOf(node *corev1.Node, ignoreExclude bool) view.Node {
	out := view.Node{
		Labels:             node.Labels,
		Excluded:           !ignoreExclude && excluded(node),
		NetworkUnavailable: is(node, corev1.NodeNetworkUnavailable),
		Ready:              is(node, corev1.NodeReady),
		BeingDeleted:       node.DeletionTimestamp != nil || tainted(node, taintLeaving),
		Stopping: node.Spec.Unschedulable || tainted(node, corev1.TaintNodeOutOfService) ||
			slices.ContainsFunc(node.Status.Conditions, shutsDown),
	}
	for _, a := range node.Status.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		addr = addr.Unmap()
		if err != nil || a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		out.Reached = append(out.Reached, addr)
		sameFamily := func(b netip.Addr) bool { return b.Is4() == addr.Is4() }
		if a.Type == corev1.NodeInternalIP && !slices.ContainsFunc(out.Addresses, sameFamily) {
			out.Addresses = append(out.Addresses, addr)
		}
	}
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	out.PodCIDRs = prefixes(cidrs)
	return out
}

// is reports whether a condition of the Node is True.
func is(node *corev1.Node, condition corev1.NodeConditionType) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}

// prefixes returns the valid CIDRs, masked; the API server accepts no others.
func prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// poolOf returns the parts of a trimmed pool that the plan uses. Invalid ranges are left out; the controller reports
// them.
func poolOf(pool *v1alpha1.IPAddressPool) view.Pool {
	out := view.Pool{Labels: pool.Labels, Created: pool.CreationTimestamp.Unix()}
	if ranges, err := pools.ParseRanges(pool.Spec.Addresses); err == nil {
		out.Ranges = ranges
		out.ReturnRoutes, _ = v1alpha1.ParseReturnRoutes(&pool.Spec)
	}
	return out
}

func vipOf(vip *v1alpha1.VirtualIP) view.VIP {
	out := view.VIP{Nodes: vip.Spec.Nodes, ReportedOwner: vip.Status.Node, Generation: vip.Generation}
	if c := meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionConflict); c != nil {
		out.Contested = c.Status == metav1.ConditionTrue && c.Reason == string(view.AnsweredTwice)
	}
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

func advertisementOf(ad *v1alpha1.L2Advertisement) view.Advertisement {
	return view.Advertisement{
		Pools:         ad.Spec.IPAddressPools,
		PoolSelectors: selectors(ad.Spec.IPAddressPoolSelectors),
		Services:      selectors(ad.Spec.ServiceSelectors),
		Nodes:         selectors(ad.Spec.NodeSelectors),
		Interfaces:    ad.Spec.Interfaces,
	}
}

// selectors converts selectors. An invalid one matches nothing; the controller reports it.
func selectors(in []metav1.LabelSelector) []pools.Selector {
	var out []pools.Selector
	for i := range in {
		sel, _ := v1alpha1.SelectorOf(&in[i])
		out = append(out, sel)
	}
	return out
}

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
