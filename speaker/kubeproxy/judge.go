// Package kubeproxy finds out whether a kube-proxy works on this node, in which mode, and whether the two get along
// (ipvs.md 6.4).
package kubeproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Mode is how a kube-proxy forwards.
type Mode string

// The modes of kube-proxy. Unknown is one that could not be found out, or that there is none.
const (
	Unknown  Mode = ""
	IPTables Mode = "iptables"
	IPVS     Mode = "ipvs"
	NFTables Mode = "nftables"
)

// Facts are what is known of the kube-proxy of this node.
type Facts struct {
	// Running is set when it answers.
	Running bool
	Mode    Mode
	// Traces are what a kube-proxy has made in the kernel, be it there or gone ("nftables table ip kube-proxy").
	Traces []string
	// Others are the service proxies of this node that are no kube-proxy.
	Others []Other
	// Configured is set when it told its configuration, which is in the fields below.
	Configured        bool
	ExcludeCIDRs      []string
	NodePortAddresses []string
	StrictARP         bool
}

// Situation is what this speaker does.
type Situation struct {
	// Pools are the addresses of our pools.
	Pools []netip.Prefix
	// Whole are the other addresses at which we serve what kube-proxy is told to leave alone: those of Services labelled for us.
	Whole []netip.Addr
	// Proxy is set when our addresses have ipMode Proxy: we forward. Otherwise kube-proxy does and we announce.
	Proxy        bool
	ServiceProxy bool
	// IPVS is set when we forward with it.
	IPVS bool
}

// Reason says in one word what is wrong between the two.
type Reason string

// The reasons, in the order in which Judge returns them.
const (
	// BesideServiceProxy: two programs serve every Service.
	BesideServiceProxy Reason = "KubeProxyBesideServiceProxy"
	// LeftOvers: a kube-proxy that is gone, or that does not answer, has rules here that take our packets.
	LeftOvers Reason = "KubeProxyLeftOvers"
	// NotExcluded: kube-proxy deletes our virtual servers.
	NotExcluded Reason = "KubeProxyDeletesVirtualServers"
	// Flushes: kube-proxy deletes all virtual servers when it starts.
	Flushes Reason = "KubeProxyFlushesVirtualServers"
	// NodePorts: NodePorts are reachable through our addresses.
	NodePorts Reason = "KubeProxyNodePortsOnVirtualAddresses"
	// ARP: nodes answer for addresses that they do not own.
	ARP Reason = "KubeProxyAnswersARP"
	// OtherBesideServiceProxy: another program than kube-proxy serves every Service as well.
	OtherBesideServiceProxy Reason = "OtherProxyBesideServiceProxy"
	// OtherDeletes: it deletes our virtual servers.
	OtherDeletes Reason = "OtherProxyDeletesVirtualServers"
	// OtherFirst: its eBPF programs see packets before we do.
	OtherFirst Reason = "OtherProxySeesPacketsFirst"
)

// Reasons are all of them.
var Reasons = []Reason{
	BesideServiceProxy, LeftOvers, NotExcluded, Flushes, NodePorts, ARP, OtherBesideServiceProxy, OtherDeletes, OtherFirst,
}

// Problem is a wrong pairing, with what to change.
type Problem struct {
	Reason  Reason
	Message string
	// Advice is set when everything works nevertheless.
	Advice bool
}

// Judge returns what is wrong, in a fixed order. It is pure.
func Judge(f Facts, s Situation) (problems []Problem) {
	add := func(reason Reason, advice bool, format string, args ...any) {
		problems = append(problems, Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Advice: advice})
	}
	present := f.Running || len(f.Traces) > 0
	defer func() { problems = append(problems, judgeOthers(f.Others, s)...) }()
	switch {
	case !present:
		return nil
	case s.ServiceProxy && f.Running:
		add(BesideServiceProxy, false, "kube-proxy%s runs on this node although serviceProxy is true, so both serve every Service: "+
			"keep kube-proxy off the node, or set serviceProxy: false", f.Mode.clause())
		return problems
	case s.ServiceProxy:
		add(LeftOvers, false, "kube-proxy does not answer on this node, but what it makes is in the kernel (%s) and comes before serviceProxy: "+
			"run \"kube-proxy --cleanup\" on the node, or restart the node without kube-proxy", strings.Join(f.Traces, ", "))
		return problems
	}
	if f.Mode == IPVS {
		if missing := uncovered(s.served(), f.ExcludeCIDRs); len(missing) > 0 {
			add(NotExcluded, !f.Configured, "%s: add %s to ipvs.excludeCIDRs in kube-proxy's configuration and restart it",
				choose(f.Configured, "kube-proxy in mode ipvs deletes the virtual servers of our addresses at each sync",
					"kube-proxy in mode ipvs does not tell its configuration, and may delete the virtual servers of our addresses"),
				join(missing))
		}
	}
	if s.Proxy && s.IPVS && f.Mode == NFTables {
		add(Flushes, true, "kube-proxy in mode nftables deletes all virtual servers of IPVS whenever it starts, which breaks connections until "+
			"they are restored: set dataplane: nftables, or run kube-proxy in mode iptables")
	}
	if open := nodePortsOpen(f, s.Pools); len(open) > 0 {
		add(NodePorts, s.Proxy, "kube-proxy%s serves NodePorts on every address of the node, also on ours (%s): "+
			"set nodePortAddresses: [primary] in kube-proxy's configuration", f.Mode.clause(), join(open))
	}
	if !s.Proxy && f.Mode == IPVS && f.Configured && !f.StrictARP {
		add(ARP, true, "kube-proxy in mode ipvs gives every node our addresses, and a node answers ARP for them while no speaker runs there: "+
			"set ipvs.strictARP: true in kube-proxy's configuration")
	}
	return problems
}

// judgeOthers returns what is wrong with service proxies that are no kube-proxy.
func judgeOthers(others []Other, s Situation) (problems []Problem) {
	for _, other := range others {
		var now Problem
		switch {
		case s.ServiceProxy && other == Cilium:
			now = Problem{Reason: OtherBesideServiceProxy, Advice: true, Message: "Cilium is on this node: " +
				"serviceProxy works only where its kubeProxyReplacement is false"}
		case s.ServiceProxy:
			now = Problem{Reason: OtherBesideServiceProxy, Message: fmt.Sprintf("%s runs on this node although serviceProxy is "+
				"true, so both serve every Service: turn it off, or set serviceProxy: false", other)}
		case s.Proxy && s.IPVS && other == KubeRouter:
			now = Problem{Reason: OtherDeletes, Message: "kube-router's service proxy deletes the virtual servers of our " +
				"addresses at each sync: set dataplane: nftables, or give kube-router --excluded-cidrs with the pools, " +
				"or --run-service-proxy=false"}
		case s.Proxy && other != KubeRouter:
			now = Problem{Reason: OtherFirst, Advice: true, Message: fmt.Sprintf("%s is on this node, and its eBPF programs "+
				"see packets before nf_tables and IPVS do, which was not tested: where connections fail, use ipMode VIP "+
				"(docs/cni.md)", other)}
		default:
			continue
		}
		problems = append(problems, now)
	}
	return problems
}

// served returns where our virtual servers may be.
func (s Situation) served() []netip.Prefix {
	var all []netip.Prefix
	if s.Proxy {
		all = slices.Clone(s.Pools)
	}
	for _, a := range s.Whole {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// clause returns " in mode ipvs", or nothing.
func (m Mode) clause() string {
	if m == Unknown {
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

// join names the first of them; an Event has room for 1,024 bytes.
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

// uncovered returns the pools of which no single CIDR holds all, sorted: kube-proxy looks each address up in each CIDR, so several
// could hold one pool between them, but nobody writes it so.
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

// nodePortsOpen returns the pools on whose addresses kube-proxy serves NodePorts (ipvs.md 2.4). In mode ipvs it looks at
// interfaces, which do not carry our addresses while we forward; in the other modes at what is local.
func nodePortsOpen(f Facts, pools []netip.Prefix) []netip.Prefix {
	if !f.Configured || f.Mode != IPTables && f.Mode != NFTables {
		return nil
	}
	if len(f.NodePortAddresses) == 0 && f.Mode == NFTables || slices.Contains(f.NodePortAddresses, "primary") {
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

// parse leaves out what is no CIDR: kube-proxy would not have started with it.
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
