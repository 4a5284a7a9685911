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
