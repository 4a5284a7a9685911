package forwarding

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
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

// elements returns the filter elements that define Pod sources. An interface has no address family, so it gets an
// element for each family in which the Nodes have addresses: a kernel without IPv6 accepts no IPv6 element.
func (d DetectLocal) elements(nodes map[string]view.Node) (out []ipvs.Element) {
	if name := d.Pattern(); name != "" {
		for _, all := range families(nodes) {
			out = append(out, ipvs.Element{Set: ipvs.PodInterfaces}.From(all).On(name))
		}
		return out
	}
	pods := d.CIDRs
	if d.Mode != ClusterCIDR {
		pods = podCIDRs(nodes)
	}
	for _, prefix := range ipvs.Disjoint(pods) {
		out = append(out, ipvs.Element{Set: ipvs.Pods}.From(prefix))
	}
	return out
}

func podCIDRs(nodes map[string]view.Node) (out []netip.Prefix) {
	for _, node := range nodes {
		out = append(out, node.PodCIDRs...)
	}
	return out
}

// families returns the all-address prefix of each family in which a Node has an address or a Pod CIDR.
func families(nodes map[string]view.Node) (out []netip.Prefix) {
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

// globalElements returns the filter elements that depend on no Service, without duplicates: the Pod sources, and the
// ranges of ClusterIPs. The ranges are included only if IronLB serves all Services: a ClusterIP served by another proxy
// would be dropped as unknown.
func globalElements(v *view.View, o Options) []ipvs.Element {
	out := o.DetectLocal.elements(v.Nodes)
	if !o.ServiceProxy || len(v.OtherProxy) > 0 {
		return out
	}
	var networks []netip.Prefix
	for _, prefixes := range v.ServiceNetworks {
		networks = append(networks, prefixes...)
	}
	for _, prefix := range ipvs.Disjoint(networks) {
		out = append(out, ipvs.Element{Set: ipvs.ServiceNetworks}.From(prefix))
	}
	return out
}

func podFamilies(global []ipvs.Element) podsKnown {
	var out podsKnown
	for _, e := range global {
		if e.Set == ipvs.Pods || e.Set == ipvs.PodInterfaces {
			out.four, out.six = out.four || e.Is4(), out.six || !e.Is4()
		}
	}
	return out
}

// planGlobal updates the filter elements that belong to no Service, and reports whether that affects every Service.
func (p *Planner) planGlobal(v *view.View) bool {
	before, pods := p.global, p.pods
	p.global = globalElements(v, p.options)
	p.count(p.global, before)
	p.pods = podFamilies(p.global)
	return p.pods != pods
}

// arriving returns the nodes on which all ready endpoints of a port of policy Local are new, in a family: routers need
// not send connections there yet (docs/design/data-plane.md, "What is new"). It requests checks of new endpoints on
// this node if another node has endpoints that are not new.
func (w *planning) arriving(port view.Port, v4 bool) (out map[string]struct{}) {
	if _, local := w.out.Ports(v4); !w.options.EndpointChecks || !w.withArriving || !local {
		return nil
	}
	from := w.candidates(port, v4)
	since := w.readySince(ListKey{Port: port.Name, Protocol: port.Protocol, IPv4: v4}, from)
	known, elsewhere := map[string]bool{}, false
	for at, e := range from {
		if e.Ready || e.Usable() {
			known[e.Node] = known[e.Node] || since[at].IsZero()
		}
		elsewhere = elsewhere || e.Ready && since[at].IsZero() && !w.isLocal(e)
	}
	for node, is := range known {
		if !is {
			add(&out, node)
			w.age(since)
		}
	}
	for at, e := range from {
		if elsewhere && !since[at].IsZero() && w.isLocal(e) {
			w.check(at, since[at])
		}
	}
	return out
}
