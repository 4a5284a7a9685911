package nodecheck

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
	"github.com/ironlb/ironlb/speaker/view"
)

func TestEvaluate(t *testing.T) {
	at := func(interfaces ...string) map[netip.Addr]Route { // "192.0.2.10 cali1", "192.0.2.10 cni0 bridge"
		out := map[netip.Addr]Route{}
		for _, text := range interfaces {
			words := strings.Fields(text + " - -")
			out[netip.MustParseAddr(words[0])] = Route{
				Interface: strings.Trim(words[1], "-"), Bridge: words[2] == "bridge", Host: words[2] == "host",
			}
		}
		return out
	}
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	nodes, on := prefixes("192.0.2.0/26", "2001:db8:1::/64"), [2]string{"1", "1"}
	bridged := at("192.0.2.10 cni0 bridge")
	node := forwarding.DetectLocal{Mode: forwarding.NodeCIDR}
	cluster := forwarding.DetectLocal{Mode: forwarding.ClusterCIDR, CIDRs: prefixes("10.0.0.0/8")}
	bridge := forwarding.DetectLocal{Mode: forwarding.BridgeInterface, Interface: "cni0"}
	names := forwarding.DetectLocal{Mode: forwarding.InterfaceNamePrefix, Interface: "cali"}
	for _, c := range []struct {
		name    string
		facts   Facts
		detect  forwarding.DetectLocal
		wrong   string // types that are False
		message []string
	}{
		{"no Pods", Facts{}, node, "", nil},
		{"a proxy", Facts{Proxies: []view.Proxy{{MAC: "02:00:00:00:00:09", Interface: "eth0", Family: "ipv4"}}}, node,
			NoProxyARP, []string{"switch proxy ARP", "02:00:00:00:00:09 (interface eth0, ipv4)"}},
		{"of the Node", Facts{Endpoints: at("192.0.2.10 cali1", "2001:db8:1::1 cali1"), PodCIDRs: nodes}, node, "", nil},
		{"the host network", Facts{Endpoints: at("198.51.100.1 lo host"), PodCIDRs: nodes}, node, "", nil},
		{"another range", Facts{Endpoints: at("192.0.2.10 cali1", "10.1.2.3 cali2"), PodCIDRs: nodes},
			node, PodTrafficDetected,
			[]string{"NodeCIDR", "10.1.2.3", "interface cali2", "set podCIDRs", "detectLocalMode: InterfaceNamePrefix"}},
		{"another range behind a bridge", Facts{Endpoints: at("10.1.2.3 br0 bridge"), PodCIDRs: nodes, BridgeCall: on}, node,
			PodTrafficDetected, []string{"detectLocal.bridgeInterface: br0"}},
		{"one family", Facts{Endpoints: at("2001:db8:2::1 cali1"), PodCIDRs: nodes[:1]},
			node, PodTrafficDetected, []string{"2001:db8:2::1"}},
		{"no ranges", Facts{Endpoints: at("192.0.2.10")}, node, PodTrafficDetected, []string{"none: no route"}},
		{"of the cluster", Facts{Endpoints: at("10.1.2.3 cali1"), PodCIDRs: nodes}, cluster, "", nil},
		{"not of the cluster", Facts{Endpoints: at("192.0.2.10 cali1"), PodCIDRs: nodes},
			cluster, PodTrafficDetected, []string{"add its range to podCIDRs"}},
		{"of the bridge", Facts{Endpoints: at("10.1.2.3 cni0 bridge"), BridgeCall: on}, bridge, "", nil},
		{"of another bridge", Facts{Endpoints: at("192.0.2.10 docker0 bridge"), PodCIDRs: nodes, BridgeCall: on},
			bridge, PodTrafficDetected,
			[]string{"interface docker0", "detectLocal.bridgeInterface"}},
		{"of the names", Facts{Endpoints: at("10.1.2.3 cali1")}, names, "", nil},
		{"of other names", Facts{Endpoints: at("192.0.2.10 lxc1"), PodCIDRs: nodes},
			names, PodTrafficDetected, []string{"detectLocal.interfaceNamePrefix"}},

		{"a bridge without the module", Facts{Endpoints: at("192.0.2.10 cni0 bridge"), PodCIDRs: nodes},
			node, BridgeNetfilter,
			[]string{"bridge cni0", "net.bridge.bridge-nf-call-iptables is missing", "modprobe br_netfilter"}},

		{"a bridge that bypasses", Facts{Endpoints: bridged, PodCIDRs: nodes, BridgeCall: [2]string{"0", "1"}}, node,
			BridgeNetfilter, []string{"net.bridge.bridge-nf-call-iptables is 0: set it to 1"}},

		{"one of IPv6", Facts{
			Endpoints: at("192.0.2.10 cni0 bridge", "2001:db8:1::1 cni0 bridge"), PodCIDRs: nodes,
			BridgeCall: [2]string{"1", "0"},
		}, node,
			BridgeNetfilter, []string{"net.bridge.bridge-nf-call-ip6tables is 0"}},
		{"only IPv4", Facts{Endpoints: at("192.0.2.10 cni0 bridge"), PodCIDRs: nodes, BridgeCall: [2]string{"1", "0"}},
			node, "", nil},
		{"Calico and IPVS", Facts{Ours: Situation{IPVS: true}, CalicoPolices: true}, node, NetworkPolicy, []string{"dataplane: nftables"}},
		{"Calico and nftables", Facts{CalicoPolices: true}, node, "", nil},
		{"IPVS without Calico", Facts{Ours: Situation{IPVS: true}}, node, "", nil},
		{"a subnet twice", Facts{Links: []view.Link{{Name: "eth1", Elsewhere: map[netip.Prefix]string{netip.MustParsePrefix("192.0.2.0/24"): "eth0"}}}},
			node, OneInterfacePerSubnet, []string{"192.0.2.0/24 is on eth0 and eth1", "through eth0"}},
		{"scheduling", Facts{NoDeadline: "operation not permitted"}, node, DeadlineScheduling, []string{"operation not permitted"}},
		{"a stall", Facts{Stall: "ClockStopped", StallMessage: "the clock stopped"}, node, NoStall, []string{"the clock stopped: all"}},
		{"no IPVS", Facts{Kernel: "6.1.0", DataPlaneError: fmt.Errorf("open: %w: module ip_vs is missing", ipvs.ErrNoModule)}, node,
			DataPlaneAvailable, []string{"KernelLacksIPVS", "open: the kernel has no IPVS: module ip_vs is missing; the kernel is 6.1.0"}},
		{"no scheduler", Facts{DataPlaneError: ipvs.ErrNoScheduler}, node, DataPlaneAvailable, []string{"KernelLacksScheduler"}},
		{"no permission", Facts{DataPlaneError: ipvs.ErrPermission}, node, DataPlaneAvailable, []string{"NoPermission"}},
		{"nftables fails", Facts{DataPlaneError: errors.New("nft: exit status 1")}, node, DataPlaneAvailable, []string{"DataPlaneFailed", "nft: exit status 1"}},
		{"a scheduler of IPVS alone", Facts{DataPlane: "nftables", Schedulers: []string{"lc", "sed"}, Fallback: "wrr"}, node, SchedulersAvailable,
			[]string{"SchedulerUnsupported", "nftables forwards on this node and has no scheduler lc, sed: wrr is used"}},
		{"kernel parameters", Facts{Parameters: errors.Join(errors.New("set sysctl a=1"), errors.New("set sysctl b=1"))}, node,
			KernelParametersSet, []string{"KernelParameterWrong", "set sysctl a=1; set sysctl b=1"}},
		{"firewalls", Facts{Firewalls: []Problem{{Reason: "FirewallDropsUnknown", Message: "chain a"}, {Reason: "NoIPTables", Message: "iptables"}}}, node,
			FirewallsCompatible, []string{"FirewallDropsUnknown", "chain a; iptables"}},
		{"kube-proxy", Facts{Proxy: kubeproxy.Facts{Running: true}, Ours: Situation{ServiceProxy: true}}, node, ServiceProxies,
			[]string{AlongsideServiceProxy, "set serviceProxy: false"}},
		{"refused kinds", Facts{Refused: []string{"bgppeers is forbidden"}}, node, APIAccess, []string{"KindsRefused", "bgppeers is forbidden; apply the CRDs"}},
		{"no bridge", Facts{Endpoints: at("192.0.2.10 cali1"), PodCIDRs: nodes}, node, "", nil},
	} {
		var wrong, types []string
		text := ""
		c.facts.Detect = c.detect
		for _, condition := range Evaluate(c.facts) {
			types = append(types, condition.Type)
			if condition.Reason == "" || condition.Message == "" {
				t.Errorf("%s: %+v lacks a reason or a message", c.name, condition)
			}
			if !condition.True {
				wrong = append(wrong, condition.Type)
				text += condition.Reason + condition.Message
			}
		}
		if got := strings.Join(wrong, " "); got != c.wrong {
			t.Errorf("%s: False are %q, want %q: %s", c.name, got, c.wrong, text)
		}
		if strings.Join(types, " ") != strings.Join(Types, " ") {
			t.Errorf("%s: types %v, want %v", c.name, types, Types)
		}
		for _, message := range c.message {
			if !strings.Contains(text, message) {
				t.Errorf("%s: %q does not contain %q", c.name, text, message)
			}
		}
	}
}

// While a condition is True, an advice is its reason and message. A problem hides an advice, which stays in Problems.
func TestAdvice(t *testing.T) {
	f := Facts{Proxy: kubeproxy.Facts{Running: true, Mode: kubeproxy.NFTables, Configured: true}, Ours: Situation{Proxy: true, IPVS: true}}
	find := func(reason string, isTrue bool, problems int) {
		t.Helper()
		results := Evaluate(f)
		got := results[slices.Index(Types, ServiceProxies)]
		if got.Reason != reason || got.True != isTrue || len(got.Problems) != problems {
			t.Errorf("got %+v, want %s, %t, %d problems", got, reason, isTrue, problems)
		}
	}
	find(Flushes, true, 1)
	f.Proxy.Others = []kubeproxy.Other{kubeproxy.KubeRouter}
	find(OtherDeletes, false, 2)
	f.Ours.IPVS, f.Proxy.Others = false, nil
	find("NoConflict", true, 0)
}
