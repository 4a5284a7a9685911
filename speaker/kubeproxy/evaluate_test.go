package kubeproxy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestEvaluate(t *testing.T) {
	pools := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:f::/64")}
	all := []string{"203.0.113.0/24", " 2001:db8::/32"}
	ours := Situation{Pools: pools, Proxy: true, IPVS: true}
	theirs := Situation{Pools: pools}
	running := func(m Mode, f Facts) Facts {
		f.Running, f.Mode, f.Configured = true, m, true
		return f
	}
	primary := Facts{NodePortAddresses: []string{"primary"}}
	cases := []struct {
		name    string
		f       Facts
		s       Situation
		want    string // "Reason" or "reason?" for advice, and words of the message
		message []string
	}{
		{"none", Facts{}, ours, "", nil},
		{"none, serviceProxy", Facts{}, Situation{ServiceProxy: true, Proxy: true}, "", nil},
		{"iptables VIP", running(IPTables, primary), theirs, "", nil},
		{"nftables VIP", running(NFTables, Facts{}), theirs, "", nil},
		{"iptables Proxy", running(IPTables, primary), ours, "", nil},
		{"iptables Proxy, default node ports", running(IPTables, Facts{}), ours, "KubeProxyNodePortsOnVirtualAddresses?",
			[]string{"nodePortAddresses: [primary]", "203.0.113.0/24, 2001:db8:f::/64"}},
		{"iptables VIP, default node ports", running(IPTables, Facts{}), theirs, "KubeProxyNodePortsOnVirtualAddresses", nil},
		{"iptables, node ports on other addresses", running(IPTables, Facts{NodePortAddresses: []string{"192.0.2.0/24"}}), ours, "", nil},
		{"iptables, node ports on a part of a pool", running(IPTables, Facts{NodePortAddresses: []string{"203.0.113.8/29"}}), ours,
			"KubeProxyNodePortsOnVirtualAddresses?", []string{"(203.0.113.0/24)"}},
		{"nftables Proxy", running(NFTables, Facts{}), ours, "KubeProxyFlushesVirtualServers?", []string{"dataplane: nftables", "mode iptables"}},
		{"nftables Proxy without IPVS", running(NFTables, Facts{}), Situation{Pools: pools, Proxy: true}, "", nil},
		{"nftables, all node ports", running(NFTables, Facts{NodePortAddresses: []string{"0.0.0.0/0"}}), Situation{Pools: pools, Proxy: true},
			"KubeProxyNodePortsOnVirtualAddresses?", []string{"(203.0.113.0/24)"}},
		{"ipvs VIP", running(IPVS, Facts{StrictARP: true}), theirs, "", nil},
		{"ipvs VIP, not strict", running(IPVS, Facts{}), theirs, "KubeProxyAnswersARP?", []string{"ipvs.strictARP: true"}},
		{"ipvs Proxy", running(IPVS, Facts{ExcludeCIDRs: all}), ours, "", nil},
		{"ipvs Proxy, none excluded", running(IPVS, Facts{}), ours, "KubeProxyDeletesVirtualServers",
			[]string{"ipvs.excludeCIDRs", "203.0.113.0/24, 2001:db8:f::/64"}},
		{"ipvs Proxy, one excluded", running(IPVS, Facts{ExcludeCIDRs: all[:1]}), ours, "KubeProxyDeletesVirtualServers", []string{"add 2001:db8:f::/64 to"}},
		{"ipvs Proxy, a part excluded", running(IPVS, Facts{ExcludeCIDRs: []string{"203.0.113.0/25", "2001:db8::/32"}}), ours,
			"KubeProxyDeletesVirtualServers", []string{"add 203.0.113.0/24 to"}},
		{"ipvs Proxy, untold", Facts{Running: true, Mode: IPVS}, ours, "KubeProxyDeletesVirtualServers?", []string{"may delete"}},
		{"ipvs by traces", Facts{Mode: IPVS, Traces: []string{"interface kube-ipvs0"}}, ours, "KubeProxyDeletesVirtualServers?", nil},
		{"ipvs VIP, a Service wholly ours", running(IPVS, Facts{StrictARP: true}), Situation{Pools: pools, Complete: []netip.Addr{netip.MustParseAddr("198.51.100.7")}},
			"KubeProxyDeletesVirtualServers", []string{"add 198.51.100.7/32 to"}},
		{"ipvs Proxy, a Service wholly ours, its network excluded", running(IPVS, Facts{ExcludeCIDRs: append([]string{"198.51.100.0/24"}, all...)}),
			Situation{Pools: pools, Proxy: true, Complete: []netip.Addr{netip.MustParseAddr("198.51.100.7")}}, "", nil},
		{"any, serviceProxy", running(IPVS, Facts{}), Situation{Pools: pools, Proxy: true, ServiceProxy: true, IPVS: true},
			"KubeProxyAlongsideServiceProxy", []string{"in mode ipvs", "serviceProxy: false"}},
		{"traces, serviceProxy", Facts{Mode: NFTables, Traces: []string{"nftables table ip kube-proxy"}}, Situation{ServiceProxy: true},
			"KubeProxyResidualRules", []string{"kube-proxy --cleanup", "nftables table ip kube-proxy"}},
	}
	for _, c := range []struct {
		name    string
		other   Other
		s       Situation
		want    string
		message []string
	}{
		{"kube-router, serviceProxy", KubeRouter, Situation{ServiceProxy: true, Proxy: true, IPVS: true},
			"OtherProxyAlongsideServiceProxy", []string{"kube-router", "serviceProxy: false"}},
		{"kube-router Proxy", KubeRouter, ours, "OtherProxyDeletesVirtualServers",
			[]string{"dataplane: nftables", "--excluded-cidrs"}},
		{"kube-router Proxy without IPVS", KubeRouter, Situation{Pools: pools, Proxy: true}, "", nil},
		{"kube-router VIP", KubeRouter, theirs, "", nil},
		{"Calico eBPF, serviceProxy", CalicoEBPF, Situation{ServiceProxy: true}, "OtherProxyAlongsideServiceProxy",
			[]string{"Calico's eBPF"}},
		{"Calico eBPF Proxy", CalicoEBPF, ours, "OtherProxySeesPacketsFirst?", []string{"docs/reference/network-plugins.md"}},
		{"Calico eBPF VIP", CalicoEBPF, theirs, "", nil},
		{"Cilium, serviceProxy", Cilium, Situation{ServiceProxy: true}, "OtherProxyAlongsideServiceProxy?",
			[]string{"kubeProxyReplacement is false"}},
		{"Cilium Proxy", Cilium, ours, "OtherProxySeesPacketsFirst?", []string{"Cilium", "docs/reference/network-plugins.md"}},
		{"Cilium VIP", Cilium, theirs, "", nil},
	} {
		added := cases[0]
		added.name, added.f, added.s, added.want, added.message = c.name, Facts{Others: []Other{c.other}}, c.s, c.want, c.message
		cases = append(cases, added)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			text := ""
			for _, p := range Evaluate(c.f, c.s) {
				reason := string(p.Reason)
				if p.Advice {
					reason += "?"
				}
				got = append(got, reason)
				text += p.Message
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %v, want %q", got, c.want)
			}
			for _, message := range c.message {
				if !strings.Contains(text, message) {
					t.Errorf("%q does not contain %q", text, message)
				}
			}
			if again := Evaluate(c.f, c.s); fmt.Sprint(again) != fmt.Sprint(Evaluate(c.f, c.s)) {
				t.Error("not the same twice")
			}
		})
	}
}
