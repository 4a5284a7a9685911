package forwarding

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

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
