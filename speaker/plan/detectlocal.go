package plan

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// LocalMode is how packets of Pods are known: kube-proxy's detectLocalMode (kubeproxy.config.k8s.io/v1alpha1), with
// its values.
type LocalMode string

// The modes. In those of an interface a packet counts by where it enters this node, whatever its source.
const (
	// NodeCIDR goes by the podCIDRs of all Nodes. It is what an empty mode means.
	NodeCIDR LocalMode = "NodeCIDR"
	// ClusterCIDR goes by prefixes that the operator named.
	ClusterCIDR LocalMode = "ClusterCIDR"
	// BridgeInterface goes by one interface.
	BridgeInterface LocalMode = "BridgeInterface"
	// InterfaceNamePrefix goes by the interfaces whose names begin alike.
	InterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// LocalModes are all of them.
var LocalModes = []LocalMode{NodeCIDR, ClusterCIDR, BridgeInterface, InterfaceNamePrefix}

// DetectLocal is a mode with what it goes by.
type DetectLocal struct {
	Mode LocalMode
	// CIDRs are those of ClusterCIDR.
	CIDRs []netip.Prefix
	// Interface is the name of the bridge, or the prefix of the names.
	Interface string
}

// Pattern returns the interfaces as an ipvs.Element names them, empty for a mode that goes by addresses.
func (d DetectLocal) Pattern() string {
	switch d.Mode {
	case BridgeInterface:
		return d.Interface
	case InterfaceNamePrefix:
		return d.Interface + "*"
	}
	return ""
}

// Covers reports whether the mode knows the packets of a Pod: of its address with the podCIDRs of all Nodes, or of the
// interface by which the node reaches it.
func (d DetectLocal) Covers(pod netip.Addr, via string, nodes []netip.Prefix) bool {
	holds := func(p netip.Prefix) bool { return p.Contains(pod) }
	switch d.Mode {
	case BridgeInterface:
		return via == d.Interface
	case InterfaceNamePrefix:
		return strings.HasPrefix(via, d.Interface)
	case ClusterCIDR:
		return slices.ContainsFunc(d.CIDRs, holds)
	}
	return slices.ContainsFunc(nodes, holds)
}

// elements returns the elements of the packet filter that say what counts as a Pod. An interface has no family of its
// own, so it counts for those in which the Nodes have addresses: a kernel without IPv6 takes no element of it.
func (d DetectLocal) elements(nodes map[string]Node) (out []ipvs.Element) {
	if name := d.Pattern(); name != "" {
		for _, all := range families(nodes) {
			out = append(out, ipvs.Element{Set: ipvs.PodInterfaces, Prefix: all, Interface: name})
		}
		return out
	}
	pods := d.CIDRs
	if d.Mode != ClusterCIDR {
		pods = podCIDRs(nodes)
	}
	for _, prefix := range disjoint(pods) {
		out = append(out, ipvs.Element{Set: ipvs.Pods, Prefix: prefix})
	}
	return out
}

func podCIDRs(nodes map[string]Node) (out []netip.Prefix) {
	for _, node := range nodes {
		out = append(out, node.PodCIDRs...)
	}
	return out
}

// families returns the prefixes of all addresses, of the families in which a Node has an address or a range of Pods.
func families(nodes map[string]Node) (out []netip.Prefix) {
	four, six := false, false
	for _, node := range nodes {
		for _, a := range node.Reached {
			four, six = four || a.Is4(), six || a.Is6()
		}
		for _, p := range node.PodCIDRs {
			four, six = four || p.Addr().Is4(), six || p.Addr().Is6()
		}
	}
	if four {
		out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	}
	if six {
		out = append(out, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	return out
}
