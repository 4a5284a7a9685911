// Package nodecheck checks the node's network against the speaker's configuration: whether packets of Pods are detected
// as such, and whether Pod-to-Pod traffic passes the packet filter. It also reports the health of liveness.
package nodecheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// Types of conditions, in the order of Evaluate, with their reasons when they are false.
const (
	PodTrafficDetected = "PodTrafficDetected"
	PodsNotCovered     = "PodsNotCovered"

	BridgeNetfilter    = "BridgeNetfilter"
	BridgeNetfilterOff = "BridgeNetfilterOff"

	NetworkPolicy     = "NetworkPolicyEnforced"
	CalicoIgnoresIPVS = "CalicoIgnoresIPVS"

	NoProxyARP = "NoProxyARP"
	ProxyARP   = "ProxyARP"

	OneInterfacePerSubnet     = "OneInterfacePerSubnet"
	SubnetOnSeveralInterfaces = "SubnetOnSeveralInterfaces"

	DeadlineScheduling = "DeadlineScheduling"
	NoDeadline         = "NoDeadline"

	NoStall = "NoStall" // its reasons are the kinds of stalls of speaker/member
)

// Types are the types of all conditions.
var Types = []string{PodTrafficDetected, BridgeNetfilter, NetworkPolicy, NoProxyARP, OneInterfacePerSubnet, DeadlineScheduling, NoStall}

// Route is the node's route to an address. Interface is empty if there is none.
type Route struct {
	Interface string
	// Bridge is set if the interface is a bridge, Host if the address is the node's own.
	Bridge, Host bool
}

// Facts are the observed state of the node.
type Facts struct {
	// Endpoints are this node's endpoints of Services, with the node's route to each.
	Endpoints map[netip.Addr]Route
	// PodCIDRs are the Pod CIDRs of all Nodes.
	PodCIDRs []netip.Prefix
	// BridgeCall reports whether bridged packets pass netfilter, for IPv4 and IPv6: the values of
	// net.bridge.bridge-nf-call-iptables and -ip6tables, empty while the module br_netfilter is not loaded.
	BridgeCall [2]string
	// IPVS is set if it forwards, CalicoPolices if rules of Calico apply to packets forwarded to Pods.
	IPVS, CalicoPolices bool
	// Proxies are the hosts that answer ARP or neighbor discovery for every address.
	Proxies []view.Proxy
	// Links are the interfaces that can announce addresses.
	Links []view.Link
	// NoDeadline is why the liveness thread lacks scheduling class Deadline, empty if it has it.
	NoDeadline string
	// Stall is the kind of a recent stall of the speaker, with a description, empty for none.
	Stall, StallMessage string
	// Unknown are the types of conditions with incomplete facts.
	Unknown []string
}

// pods returns the endpoints outside the node's own network, sorted.
func (f Facts) pods() (pods []netip.Addr) {
	for addr, route := range f.Endpoints {
		if !route.Host {
			pods = append(pods, addr)
		}
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	return pods
}

// Evaluate returns one condition of each type that is not in Unknown, in the order of Types. It is pure.
func Evaluate(f Facts, detect forwarding.DetectLocal) []report.NodeCondition {
	all := []report.NodeCondition{f.podTraffic(detect), f.bridge(), f.networkPolicy(), f.proxyARP(), f.interfaces(), f.scheduling(), f.stall()}
	return slices.DeleteFunc(all, func(c report.NodeCondition) bool { return slices.Contains(f.Unknown, c.Type) })
}

// networkPolicy: packets that IPVS sends to a Pod of this node leave by the hook OUTPUT, where Calico applies no policy
// to packets for Pods; its exception for kube-proxy's ipvs mode omits addresses that are local routes
// (docs/reference/network-plugins.md).
func (f Facts) networkPolicy() report.NodeCondition {
	if f.IPVS && f.CalicoPolices {
		return report.NodeCondition{Type: NetworkPolicy, Reason: CalicoIgnoresIPVS, Message: "NetworkPolicies of Calico " +
			"do not apply to connections that IPVS sends to Pods of this node: set dataplane: nftables; " +
			"with auto a restart of the speaker chooses nftables"}
	}
	return report.NodeCondition{Type: NetworkPolicy, True: true, Reason: "NothingBypassed",
		Message: "no network plugin was found whose NetworkPolicies the data plane bypasses"}
}

// proxyARP: a client that resolves a VirtualIP may get the answer of a host that answers for every address.
func (f Facts) proxyARP() report.NodeCondition {
	if len(f.Proxies) == 0 {
		return report.NodeCondition{Type: NoProxyARP, True: true, Reason: "NoProxyFound",
			Message: "no host was found that answers for every address"}
	}
	hosts := make([]string, 0, len(f.Proxies))
	for _, p := range f.Proxies {
		hosts = append(hosts, fmt.Sprintf("%s (interface %s, %s)", p.MAC, p.Interface, p.Family))
	}
	return report.NodeCondition{Type: NoProxyARP, Reason: ProxyARP, Message: "a host answers for every address, " +
		"so clients may send it packets for VirtualIPs: switch proxy ARP, or the proxy of neighbor discovery, off at " +
		strings.Join(hosts, ", ") + "; its answers to this node's probes do not count"}
}

// interfaces: of several interfaces in one subnet, one announces its addresses.
func (f Facts) interfaces() report.NodeCondition {
	var found []string
	for _, l := range f.Links {
		for subnet, chosen := range l.Elsewhere {
			found = append(found, fmt.Sprintf("%v is on %s and %s, and the kernel's route to it leads through %s", subnet, chosen, l.Name, chosen))
		}
	}
	if len(found) == 0 {
		return report.NodeCondition{Type: OneInterfacePerSubnet, True: true, Reason: "NoSubnetTwice",
			Message: "no two interfaces have a subnet in common"}
	}
	slices.Sort(found)
	return report.NodeCondition{Type: OneInterfacePerSubnet, Reason: SubnetOnSeveralInterfaces, Message: strings.Join(found, "; ") +
		": addresses are announced on that interface alone; to announce on the other one, name it in interfaces of the L2Advertisement"}
}

func (f Facts) scheduling() report.NodeCondition {
	if f.NoDeadline == "" {
		return report.NodeCondition{Type: DeadlineScheduling, True: true, Reason: "Deadline",
			Message: "the liveness thread has scheduling class Deadline"}
	}
	return report.NodeCondition{Type: DeadlineScheduling, Reason: NoDeadline,
		Message: "the liveness thread may be late and lose VirtualIPs if the node is busy: " + f.NoDeadline}
}

func (f Facts) stall() report.NodeCondition {
	if f.Stall == "" {
		return report.NodeCondition{Type: NoStall, True: true, Reason: "NoRecentStall", Message: "the speaker did not stall recently"}
	}
	return report.NodeCondition{Type: NoStall, Reason: f.Stall, Message: f.StallMessage +
		": all VirtualIPs were released; ironlb_liveness_fences_total counts repetitions"}
}

func (f Facts) podTraffic(detect forwarding.DetectLocal) report.NodeCondition {
	for _, pod := range f.pods() {
		via := f.Endpoints[pod].Interface
		if detect.Covers(pod, via, f.PodCIDRs) {
			continue
		}
		return report.NodeCondition{Type: PodTrafficDetected, Reason: PodsNotCovered, Message: fmt.Sprintf(
			"detectLocalMode %s does not cover the Pod %v of this node (interface %s): its connections to ClusterIPs are "+
				"masqueraded, and policy Local drops those that no endpoint of this node serves; %s",
			detect.Mode, pod, orNone(via), f.remedy(pod, detect))}
	}
	return report.NodeCondition{Type: PodTrafficDetected, True: true, Reason: "PodsCovered",
		Message: fmt.Sprintf("detectLocalMode %s covers the Pods of this node that are endpoints of Services", detect.Mode)}
}

// remedy names the setting to change, and an interface mode only if that is certain to fit.
func (f Facts) remedy(pod netip.Addr, detect forwarding.DetectLocal) string {
	const ranges = "set podCIDRs to the ranges of all Pods (detectLocalMode: ClusterCIDR), or set detectLocalMode: "
	switch route := f.Endpoints[pod]; {
	case detect.Mode == forwarding.ClusterCIDR:
		return "add its range to podCIDRs"
	case detect.Mode == forwarding.BridgeInterface:
		return "set detectLocal.bridgeInterface to the bridge of the Pods, or choose another detectLocalMode"
	case detect.Mode == forwarding.InterfaceNamePrefix:
		return "set detectLocal.interfaceNamePrefix to what the names of the Pods' interfaces begin with, " +
			"or choose another detectLocalMode"
	case route.Bridge:
		return ranges + "BridgeInterface with detectLocal.bridgeInterface: " + route.Interface
	}
	return ranges + "InterfaceNamePrefix with detectLocal.interfaceNamePrefix"
}

func orNone(name string) string {
	if name == "" {
		return "none: no route"
	}
	return name
}

// bridge: replies between Pods by way of a Service must pass the node's connection tracking, even if both Pods are
// ports of one bridge. Otherwise the reply reaches the client with the endpoint's address.
func (f Facts) bridge() report.NodeCondition {
	keys := [2]string{"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"}
	for _, pod := range f.pods() {
		route, family := f.Endpoints[pod], 0
		if pod.Is6() {
			family = 1
		}
		if !route.Bridge || f.BridgeCall[family] == "1" {
			continue
		}
		how := fmt.Sprintf("is %s: set it to 1", f.BridgeCall[family])
		if f.BridgeCall[family] == "" {
			how = `is missing: run "modprobe br_netfilter" on the node, at each boot, and set it to 1`
		}
		return report.NodeCondition{Type: BridgeNetfilter, Reason: BridgeNetfilterOff, Message: fmt.Sprintf(
			"Pods of this node are ports of the bridge %s, and a connection of one of them to a Service that another one "+
				"serves fails: %s %s", route.Interface, keys[family], how)}
	}
	return report.NodeCondition{Type: BridgeNetfilter, True: true, Reason: "NothingMissing",
		Message: "no Pod of this node is behind a bridge that bypasses netfilter"}
}
