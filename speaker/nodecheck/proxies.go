package nodecheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/speaker/kubeproxy"
)

// Situation is the configuration of this speaker.
type Situation struct {
	// Pools are the addresses of IronLB's pools.
	Pools []netip.Prefix
	// Complete are the other addresses that the speaker serves and kube-proxy must ignore: those of Services labelled for
	// IronLB.
	Complete []netip.Addr
	// Proxy is set when IronLB's addresses have ipMode Proxy: the speaker forwards. Otherwise kube-proxy forwards and
	// the speaker announces.
	Proxy        bool
	ServiceProxy bool
	// IPVS is set when the speaker forwards with it.
	IPVS bool
}

// Reasons of ServiceProxiesCompatible, in the order in which they are found.
const (
	// AlongsideServiceProxy: two programs serve every Service.
	AlongsideServiceProxy = "KubeProxyAlongsideServiceProxy"
	// ResidualState: residual rules of a kube-proxy that is removed, or does not respond, take IronLB's packets.
	ResidualState = "KubeProxyResidualRules"
	// NotExcluded: kube-proxy deletes IronLB's virtual servers.
	NotExcluded = "KubeProxyDeletesVirtualServers"
	// Flushes: kube-proxy deletes all virtual servers when it starts.
	Flushes = "KubeProxyFlushesVirtualServers"
	// NodePorts: NodePorts are reachable through IronLB's addresses.
	NodePorts = "KubeProxyNodePortsOnVirtualAddresses"
	// ARP: nodes answer for addresses that they do not own.
	ARP = "KubeProxyAnswersARP"
	// OtherAlongsideServiceProxy: another program than kube-proxy serves every Service as well.
	OtherAlongsideServiceProxy = "OtherProxyAlongsideServiceProxy"
	// OtherDeletes: that program deletes IronLB's virtual servers.
	OtherDeletes = "OtherProxyDeletesVirtualServers"
	// OtherFirst: its eBPF programs process packets before the speaker's data plane.
	OtherFirst = "OtherProxySeesPacketsFirst"
)

// ProxyReasons contains all of them.
var ProxyReasons = []string{
	AlongsideServiceProxy, ResidualState, NotExcluded, Flushes, NodePorts, ARP, OtherAlongsideServiceProxy, OtherDeletes, OtherFirst,
}

// proxies checks the service proxies of the node against the speaker.
func (f Facts) proxies() (message string, problems []Problem) {
	message = "no kube-proxy was found"
	if f.Proxy.Present() {
		message = "kube-proxy" + modeClause(f.Proxy.Mode) + " and the speaker are compatible"
	}
	return message, append(kubeProxy(f.Proxy, f.Ours), otherProxies(f.Proxy.Others, f.Ours)...)
}

// kubeProxy returns the problems with a kube-proxy, in a fixed order.
func kubeProxy(f kubeproxy.Facts, s Situation) (problems []Problem) {
	add := func(reason string, advice bool, format string, args ...any) {
		problems = append(problems, Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Advice: advice})
	}
	switch {
	case !f.Present():
		return nil
	case s.ServiceProxy && f.Running:
		add(AlongsideServiceProxy, false, "kube-proxy%s runs on this node although serviceProxy is true, so both serve every Service: "+
			"keep kube-proxy off the node, or set serviceProxy: false", modeClause(f.Mode))
		return problems
	case s.ServiceProxy:
		add(ResidualState, false, "kube-proxy does not answer on this node, but what it makes is in the kernel (%s) and comes before serviceProxy: "+
			"run \"kube-proxy --cleanup\" on the node, or restart the node without kube-proxy", strings.Join(f.Traces, ", "))
		return problems
	}
	if f.Mode == kubeproxy.IPVS {
		if missing := uncovered(s.served(), f.ExcludeCIDRs); len(missing) > 0 {
			add(NotExcluded, !f.Configured, "%s: add %s to ipvs.excludeCIDRs in kube-proxy's configuration and restart it",
				choose(f.Configured, "kube-proxy in mode ipvs deletes the virtual servers of our addresses at each sync",
					"kube-proxy in mode ipvs does not serve its configuration, and may delete the virtual servers of our addresses"),
				join(missing))
		}
	}
	if s.Proxy && s.IPVS && f.Mode == kubeproxy.NFTables {
		add(Flushes, true, "kube-proxy in mode nftables deletes all virtual servers of IPVS whenever it starts, which breaks connections until "+
			"they are restored: set dataplane: nftables, or run kube-proxy in mode iptables")
	}
	if open := nodePortsOpen(f, s.Pools); len(open) > 0 {
		add(NodePorts, s.Proxy, "kube-proxy%s serves NodePorts on every address of the node, also on ours (%s): "+
			"set nodePortAddresses: [primary] in kube-proxy's configuration", modeClause(f.Mode), join(open))
	}
	if !s.Proxy && f.Mode == kubeproxy.IPVS && f.Configured && !f.StrictARP {
		add(ARP, true, "kube-proxy in mode ipvs gives every node our addresses, and a node answers ARP for them while no speaker runs there: "+
			"set ipvs.strictARP: true in kube-proxy's configuration")
	}
	return problems
}

// otherProxies returns the problems with service proxies other than kube-proxy.
func otherProxies(others []kubeproxy.Other, s Situation) (problems []Problem) {
	for _, other := range others {
		var now Problem
		switch {
		case s.ServiceProxy && other == kubeproxy.Cilium:
			now = Problem{Reason: OtherAlongsideServiceProxy, Advice: true, Message: "Cilium is on this node: " +
				"serviceProxy works only where its kubeProxyReplacement is false"}
		case s.ServiceProxy:
			now = Problem{Reason: OtherAlongsideServiceProxy, Message: fmt.Sprintf("%s runs on this node although serviceProxy is "+
				"true, so both serve every Service: disable it, or set serviceProxy: false", other)}
		case s.Proxy && s.IPVS && other == kubeproxy.KubeRouter:
			now = Problem{Reason: OtherDeletes, Message: "kube-router's service proxy deletes the virtual servers of our " +
				"addresses at each sync: set dataplane: nftables, or give kube-router --excluded-cidrs with the pools, " +
				"or --run-service-proxy=false"}
		case s.Proxy && other != kubeproxy.KubeRouter:
			now = Problem{Reason: OtherFirst, Advice: true, Message: fmt.Sprintf("%s is on this node, and its eBPF programs "+
				"see packets before nf_tables and IPVS do, which was not tested: where connections fail, use ipMode VIP "+
				"(docs/reference/network-plugins.md)", other)}
		default:
			continue
		}
		problems = append(problems, now)
	}
	return problems
}

// served returns the prefixes that may contain IronLB's virtual servers.
func (s Situation) served() []netip.Prefix {
	var all []netip.Prefix
	if s.Proxy {
		all = slices.Clone(s.Pools)
	}
	for _, a := range s.Complete {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// modeClause returns " in mode ipvs", or nothing.
func modeClause(m kubeproxy.Mode) string {
	if m == kubeproxy.Unknown {
		return ""
	}
	return " in mode " + string(m)
}

func choose(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}

// join lists the first prefixes; an Event has room for 1,024 bytes.
func join(prefixes []netip.Prefix) string {
	const most = 10
	var texts []string
	for _, p := range prefixes[:min(most, len(prefixes))] {
		texts = append(texts, p.String())
	}
	if n := len(prefixes) - most; n > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(texts, ", ")
}

// uncovered returns the pools that no single CIDR covers fully, sorted. kube-proxy checks each address against each
// CIDR, so several CIDRs could cover one pool together, but that is not usual.
func uncovered(pools []netip.Prefix, cidrs []string) []netip.Prefix {
	excluded := parse(cidrs)
	var missing []netip.Prefix
	for _, pool := range pools {
		if !slices.ContainsFunc(excluded, func(e netip.Prefix) bool { return e.Bits() <= pool.Bits() && e.Contains(pool.Addr()) }) {
			missing = append(missing, pool)
		}
	}
	return sorted(missing)
}

// nodePortsOpen returns the pools on whose addresses kube-proxy serves NodePorts. Mode ipvs uses the
// addresses of interfaces, which do not have IronLB's while the speaker forwards. The other modes use local addresses.
func nodePortsOpen(f kubeproxy.Facts, pools []netip.Prefix) []netip.Prefix {
	if !f.Configured || f.Mode != kubeproxy.IPTables && f.Mode != kubeproxy.NFTables {
		return nil
	}
	if len(f.NodePortAddresses) == 0 && f.Mode == kubeproxy.NFTables || slices.Contains(f.NodePortAddresses, "primary") {
		return nil
	}
	served := parse(f.NodePortAddresses)
	var open []netip.Prefix
	for _, pool := range pools {
		if len(f.NodePortAddresses) == 0 || slices.ContainsFunc(served, pool.Overlaps) {
			open = append(open, pool)
		}
	}
	return sorted(open)
}

// parse leaves out invalid CIDRs: kube-proxy would not have started with them.
func parse(cidrs []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			prefixes = append(prefixes, p.Masked())
		}
	}
	return prefixes
}

func sorted(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	return prefixes
}
