// Package nodecheck checks the node against the speaker's configuration: the data plane, kernel parameters, other
// firewalls and service proxies, the network of Pods, liveness, and access to the API server. Its table has one row for
// each condition of the SpeakerStatus.
package nodecheck

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// Types of conditions.
const (
	DataPlaneAvailable    = "DataPlaneAvailable"
	SchedulersAvailable   = "SchedulersAvailable"
	KernelParametersSet   = "KernelParametersSet"
	FirewallsCompatible   = "FirewallsCompatible"
	ServiceProxies        = "ServiceProxiesCompatible"
	NetworkPolicy         = "NetworkPolicyEnforced"
	PodTrafficDetected    = "PodTrafficDetected"
	BridgeNetfilter       = "BridgeNetfilter"
	NoProxyARP            = "NoProxyARP"
	OneInterfacePerSubnet = "OneInterfacePerSubnet"
	DeadlineScheduling    = "DeadlineScheduling"
	NoStall               = "NoStall"
	APIAccess             = "APIAccess"
)

// Reasons of conditions that are False, in the order of the table. NoStall has the kinds of stalls of speaker/member,
// FirewallsCompatible the reasons of ipvs/nft, and ServiceProxies the ProxyReasons.
const (
	NoIPVS                    = "KernelLacksIPVS"
	NoScheduler               = "KernelLacksScheduler"
	NoPermission              = "NoPermission"
	DataPlaneFailed           = "DataPlaneFailed"
	SchedulerUnsupported      = "SchedulerUnsupported"
	ParameterWrong            = "KernelParameterWrong"
	CalicoIgnoresIPVS         = "CalicoIgnoresIPVS"
	PodsNotCovered            = "PodsNotCovered"
	BridgeNetfilterOff        = "BridgeNetfilterOff"
	ProxyARP                  = "ProxyARP"
	SubnetOnSeveralInterfaces = "SubnetOnSeveralInterfaces"
	NoDeadline                = "NoDeadline"
	KindsRefused              = "KindsRefused"
)

// checks is the table: each condition, its reason without a problem, and what evaluates the facts. That returns the
// problems, the most severe first, and the message without any.
var checks = []struct {
	condition, fine string
	evaluate        func(Facts) (message string, problems []Problem)
}{
	{DataPlaneAvailable, "Forwarding", Facts.dataPlane},
	{SchedulersAvailable, "AllAvailable", Facts.schedulers},
	{KernelParametersSet, "AllSet", Facts.parameters},
	{FirewallsCompatible, "NothingDropped", Facts.firewalls},
	{ServiceProxies, "NoConflict", Facts.proxies},
	{NetworkPolicy, "NothingBypassed", Facts.networkPolicy},
	{PodTrafficDetected, "PodsCovered", Facts.podTraffic},
	{BridgeNetfilter, "NothingMissing", Facts.bridge},
	{NoProxyARP, "NoProxyFound", Facts.proxyARP},
	{OneInterfacePerSubnet, "NoSubnetTwice", Facts.interfaces},
	{DeadlineScheduling, "Deadline", Facts.scheduling},
	{NoStall, "NoRecentStall", Facts.stall},
	{APIAccess, "Granted", Facts.access},
}

// Types are the types of all conditions, in the order of the table.
var Types = func() (types []string) {
	for _, c := range checks {
		types = append(types, c.condition)
	}
	return types
}()

// Problem is a cause, with its remediation in the message.
type Problem struct {
	Reason, Message string
	// Advice is set when everything works nevertheless: the condition stays True.
	Advice bool
}

// Result is the outcome of a check. The condition has the reason of the first problem; while it is True, that of the
// first advice.
type Result struct {
	report.NodeCondition
	Problems []Problem
}

// Evaluate returns the result of each check that is not in Unknown, in the order of the table. It is pure.
func Evaluate(f Facts) (results []Result) {
	for _, c := range checks {
		if slices.Contains(f.Unknown, c.condition) {
			continue
		}
		message, problems := c.evaluate(f)
		shown := slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return p.Advice })
		r := Result{report.NodeCondition{Type: c.condition, True: len(shown) == 0, Reason: c.fine, Message: message}, problems}
		if r.True {
			shown = problems
		}
		if len(shown) > 0 {
			r.Reason, r.Message = shown[0].Reason, joined(shown)
		}
		results = append(results, r)
	}
	return results
}

// joined returns the messages of problems.
func joined(problems []Problem) string {
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.Message)
	}
	return strings.Join(texts, "; ")
}

// problem returns one problem.
func problem(reason, format string, args ...any) []Problem {
	return []Problem{{Reason: reason, Message: fmt.Sprintf(format, args...)}}
}

// Route is the node's route to an address. Interface is empty if there is none.
type Route struct {
	Interface string
	// Bridge is set if the interface is a bridge, Host if the address is the node's own.
	Bridge, Host bool
}

// Facts are the observed state of the node.
type Facts struct {
	// DataPlane forwards, on the kernel of this release: "ipvs" or "nftables". It is empty while none can be used, because
	// of DataPlaneError.
	DataPlane, Kernel string
	DataPlaneError    error
	// Schedulers are the requested ones that the data plane lacks, Fallback is used instead.
	Schedulers []string
	Fallback   string
	// Parameters is why kernel parameters are not set, nil if all are.
	Parameters error
	// Firewalls are the problems with other firewalls.
	Firewalls []Problem
	// Proxy are the service proxies of the node, Ours is the configuration that they must match.
	Proxy kubeproxy.Facts
	Ours  Situation
	// Detect is how packets of Pods are detected.
	Detect forwarding.DetectLocal
	// Endpoints are this node's endpoints of Services, with the node's route to each.
	Endpoints map[netip.Addr]Route
	// PodCIDRs are the Pod CIDRs of all Nodes.
	PodCIDRs []netip.Prefix
	// BridgeCall reports whether bridged packets pass netfilter, for IPv4 and IPv6: the values of
	// net.bridge.bridge-nf-call-iptables and -ip6tables, empty while the module br_netfilter is not loaded.
	BridgeCall [2]string
	// CalicoPolices is set if rules of Calico apply to packets forwarded to Pods.
	CalicoPolices bool
	// Proxies are the hosts that answer ARP or neighbor discovery for every address.
	Proxies []view.Proxy
	// Links are the interfaces that can announce addresses.
	Links []view.Link
	// NoDeadline is why the liveness thread lacks scheduling class Deadline, empty if it has it.
	NoDeadline string
	// Stall is the kind of a recent stall of the speaker, with a description, empty for none.
	Stall, StallMessage string
	// Refused are the kinds of objects that the API server refuses to the speaker, with its message.
	Refused []string
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

func (f Facts) dataPlane() (message string, problems []Problem) {
	reason := DataPlaneFailed
	switch err := f.DataPlaneError; {
	case err == nil:
		return fmt.Sprintf("%s forwards on kernel %s", f.DataPlane, f.Kernel), nil
	case errors.Is(err, ipvs.ErrNoModule):
		reason = NoIPVS
	case errors.Is(err, ipvs.ErrNoScheduler):
		reason = NoScheduler
	case errors.Is(err, ipvs.ErrPermission):
		reason = NoPermission
	}
	return "", problem(reason, "%s; the kernel is %s", oneLine(f.DataPlaneError), f.Kernel)
}

func (f Facts) schedulers() (message string, problems []Problem) {
	if len(f.Schedulers) > 0 {
		return "", problem(SchedulerUnsupported, "%s forwards on this node and has no scheduler %s: %s is used. Request rr, wrr, sh or mh, or use IPVS",
			f.DataPlane, strings.Join(f.Schedulers, ", "), f.Fallback)
	}
	return "the data plane has every requested scheduler", nil
}

func (f Facts) parameters() (message string, problems []Problem) {
	if f.Parameters != nil {
		return "", problem(ParameterWrong, "%s", oneLine(f.Parameters))
	}
	return "the kernel parameters have the required values", nil
}

// oneLine returns the text of joined errors.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (f Facts) firewalls() (message string, problems []Problem) {
	return "no other firewall drops packets to virtual servers", f.Firewalls
}

func (f Facts) access() (message string, problems []Problem) {
	if len(f.Refused) > 0 {
		return "", problem(KindsRefused, "the API server refuses objects that the speaker reads, so they have no effect on this node: %s; "+
			"apply the CRDs and the ClusterRole of this version", strings.Join(f.Refused, "; "))
	}
	return "the API server returned every kind of object", nil
}

// networkPolicy: packets that IPVS sends to a Pod of this node leave by the hook OUTPUT, where Calico applies no policy
// to packets for Pods; its exception for kube-proxy's ipvs mode omits addresses that are local routes
// (docs/reference/network-plugins.md).
func (f Facts) networkPolicy() (message string, problems []Problem) {
	if f.Ours.IPVS && f.CalicoPolices {
		return "", problem(CalicoIgnoresIPVS, "NetworkPolicies of Calico do not apply to connections that IPVS sends to Pods of this node: "+
			"set dataplane: nftables; with auto a restart of the speaker chooses nftables")
	}
	return "no network plugin was found whose NetworkPolicies the data plane bypasses", nil
}

// proxyARP: a client that resolves a VirtualIP may get the answer of a host that answers for every address.
func (f Facts) proxyARP() (message string, problems []Problem) {
	if len(f.Proxies) == 0 {
		return "no host was found that answers for every address", nil
	}
	hosts := make([]string, 0, len(f.Proxies))
	for _, p := range f.Proxies {
		hosts = append(hosts, fmt.Sprintf("%s (interface %s, %s)", p.MAC, p.Interface, p.Family))
	}
	return "", problem(ProxyARP, "a host answers for every address, so clients may send it packets for VirtualIPs: switch proxy ARP, "+
		"or the proxy of neighbor discovery, off at %s; its answers to this node's probes do not count", strings.Join(hosts, ", "))
}

// interfaces: of several interfaces in one subnet, one announces its addresses.
func (f Facts) interfaces() (message string, problems []Problem) {
	var found []string
	for _, l := range f.Links {
		for subnet, chosen := range l.Elsewhere {
			found = append(found, fmt.Sprintf("%v is on %s and %s, and the kernel's route to it leads through %s", subnet, chosen, l.Name, chosen))
		}
	}
	if len(found) == 0 {
		return "no two interfaces have a subnet in common", nil
	}
	slices.Sort(found)
	return "", problem(SubnetOnSeveralInterfaces, "%s: addresses are announced on that interface alone; to announce on the other one, "+
		"name it in interfaces of the L2Advertisement", strings.Join(found, "; "))
}

func (f Facts) scheduling() (message string, problems []Problem) {
	if f.NoDeadline != "" {
		return "", problem(NoDeadline, "the liveness thread may be late and lose VirtualIPs if the node is busy: %s", f.NoDeadline)
	}
	return "the liveness thread has scheduling class Deadline", nil
}

func (f Facts) stall() (message string, problems []Problem) {
	if f.Stall != "" {
		return "", problem(f.Stall, "%s: all VirtualIPs were released; ironlb_liveness_fences_total counts repetitions", f.StallMessage)
	}
	return "the speaker did not stall recently", nil
}

func (f Facts) podTraffic() (message string, problems []Problem) {
	for _, pod := range f.pods() {
		via := f.Endpoints[pod].Interface
		if f.Detect.Covers(pod, via, f.PodCIDRs) {
			continue
		}
		return "", problem(PodsNotCovered, "detectLocalMode %s does not cover the Pod %v of this node (interface %s): its connections to "+
			"ClusterIPs are masqueraded, and policy Local drops those that no endpoint of this node serves; %s",
			f.Detect.Mode, pod, cmp.Or(via, "none: no route"), f.remedy(pod))
	}
	return fmt.Sprintf("detectLocalMode %s covers the Pods of this node that are endpoints of Services", f.Detect.Mode), nil
}

// remedy names the setting to change, and an interface mode only if that is certain to fit.
func (f Facts) remedy(pod netip.Addr) string {
	const ranges = "set podCIDRs to the ranges of all Pods (detectLocalMode: ClusterCIDR), or set detectLocalMode: "
	switch route := f.Endpoints[pod]; {
	case f.Detect.Mode == forwarding.ClusterCIDR:
		return "add its range to podCIDRs"
	case f.Detect.Mode == forwarding.BridgeInterface:
		return "set detectLocal.bridgeInterface to the bridge of the Pods, or choose another detectLocalMode"
	case f.Detect.Mode == forwarding.InterfaceNamePrefix:
		return "set detectLocal.interfaceNamePrefix to what the names of the Pods' interfaces begin with, " +
			"or choose another detectLocalMode"
	case route.Bridge:
		return ranges + "BridgeInterface with detectLocal.bridgeInterface: " + route.Interface
	}
	return ranges + "InterfaceNamePrefix with detectLocal.interfaceNamePrefix"
}

// bridge: replies between Pods by way of a Service must pass the node's connection tracking, even if both Pods are
// ports of one bridge. Otherwise the reply reaches the client with the endpoint's address.
func (f Facts) bridge() (message string, problems []Problem) {
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
		return "", problem(BridgeNetfilterOff, "Pods of this node are ports of the bridge %s, and a connection of one of them to a Service "+
			"that another one serves fails: %s %s", route.Interface, keys[family], how)
	}
	return "no Pod of this node is behind a bridge that bypasses netfilter", nil
}
