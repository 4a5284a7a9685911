package forwarding

import (
	"net/netip"
	"slices"
	"strings"
)

// LocalMode is how Pod packets are recognized: kube-proxy's detectLocalMode (kubeproxy.config.k8s.io/v1alpha1), with
// its values.
type LocalMode string

// The modes. The interface modes match packets by their ingress interface, whatever the source.
const (
	// NodeCIDR matches the podCIDRs of all Nodes. It is the default for an empty mode.
	NodeCIDR LocalMode = "NodeCIDR"
	// ClusterCIDR matches configured prefixes.
	ClusterCIDR LocalMode = "ClusterCIDR"
	// BridgeInterface matches one interface.
	BridgeInterface LocalMode = "BridgeInterface"
	// InterfaceNamePrefix matches interfaces by a common name prefix.
	InterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// LocalModes are all modes.
var LocalModes = []LocalMode{NodeCIDR, ClusterCIDR, BridgeInterface, InterfaceNamePrefix}

// DetectLocal is a mode with its parameters.
type DetectLocal struct {
	Mode LocalMode
	// CIDRs are the prefixes of ClusterCIDR.
	CIDRs []netip.Prefix
	// Interface is the name of the bridge, or the name prefix.
	Interface string
}

// Pattern returns the interfaces in the syntax of ipvs.Element, empty for a mode that matches addresses.
func (d DetectLocal) Pattern() string {
	switch d.Mode {
	case BridgeInterface:
		return d.Interface
	case InterfaceNamePrefix:
		return d.Interface + "*"
	}
	return ""
}

// Covers reports whether the mode recognizes the packets of a Pod, given its address, the interface through which the
// node reaches it, and the podCIDRs of all Nodes.
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
