package nodecheck

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/speaker/kubeproxy"
)

func TestProxies(t *testing.T) {
	pools := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:f::/64")}
	all := []string{"203.0.113.0/24", " 2001:db8::/32"}
	ours := Situation{Pools: pools, Proxy: true, IPVS: true}
	theirs := Situation{Pools: pools}
	running := func(m kubeproxy.Mode, f kubeproxy.Facts) kubeproxy.Facts {
		f.Running, f.Mode, f.Configured = true, m, true
		return f
	}
	primary := kubeproxy.Facts{NodePortAddresses: []string{"primary"}}
	cases := []struct {
		name    string
		f       kubeproxy.Facts
		s       Situation
		want    string // "Reason" or "reason?" for advice, and words of the message
		message []string
	}{
		{"none", kubeproxy.Facts{}, ours, "", nil},
		{"none, serviceProxy", kubeproxy.Facts{}, Situation{ServiceProxy: true, Proxy: true}, "", nil},
		{"iptables VIP", running(kubeproxy.IPTables, primary), theirs, "", nil},
		{"nftables VIP", running(kubeproxy.NFTables, kubeproxy.Facts{}), theirs, "", nil},
		{"iptables Proxy", running(kubeproxy.IPTables, primary), ours, "", nil},
		{"iptables Proxy, default node ports", running(kubeproxy.IPTables, kubeproxy.Facts{}), ours, "KubeProxyNodePortsOnVirtualAddresses?",
			[]string{"nodePortAddresses: [primary]", "203.0.113.0/24, 2001:db8:f::/64"}},
		{"iptables VIP, default node ports", running(kubeproxy.IPTables, kubeproxy.Facts{}), theirs, "KubeProxyNodePortsOnVirtualAddresses", nil},
		{"iptables, node ports on other addresses", running(kubeproxy.IPTables, kubeproxy.Facts{NodePortAddresses: []string{"192.0.2.0/24"}}), ours, "", nil},
		{"iptables, node ports on a part of a pool", running(kubeproxy.IPTables, kubeproxy.Facts{NodePortAddresses: []string{"203.0.113.8/29"}}), ours,
			"KubeProxyNodePortsOnVirtualAddresses?", []string{"(203.0.113.0/24)"}},
		{"nftables Proxy", running(kubeproxy.NFTables, kubeproxy.Facts{}), ours, "KubeProxyFlushesVirtualServers?", []string{"dataplane: nftables", "mode iptables"}},
		{"nftables Proxy without IPVS", running(kubeproxy.NFTables, kubeproxy.Facts{}), Situation{Pools: pools, Proxy: true}, "", nil},
		{"nftables, all node ports", running(kubeproxy.NFTables, kubeproxy.Facts{NodePortAddresses: []string{"0.0.0.0/0"}}), Situation{Pools: pools, Proxy: true},
			"KubeProxyNodePortsOnVirtualAddresses?", []string{"(203.0.113.0/24)"}},
		{"ipvs VIP", running(kubeproxy.IPVS, kubeproxy.Facts{StrictARP: true}), theirs, "", nil},
		{"ipvs VIP, not strict", running(kubeproxy.IPVS, kubeproxy.Facts{}), theirs, "KubeProxyAnswersARP?", []string{"ipvs.strictARP: true"}},
		{"ipvs Proxy", running(kubeproxy.IPVS, kubeproxy.Facts{ExcludeCIDRs: all}), ours, "", nil},
		{"ipvs Proxy, none excluded", running(kubeproxy.IPVS, kubeproxy.Facts{}), ours, "KubeProxyDeletesVirtualServers",
			[]string{"ipvs.excludeCIDRs", "203.0.113.0/24, 2001:db8:f::/64"}},
		{"ipvs Proxy, one excluded", running(kubeproxy.IPVS, kubeproxy.Facts{ExcludeCIDRs: all[:1]}), ours, "KubeProxyDeletesVirtualServers", []string{"add 2001:db8:f::/64 to"}},
		{"ipvs Proxy, a part excluded", running(kubeproxy.IPVS, kubeproxy.Facts{ExcludeCIDRs: []string{"203.0.113.0/25", "2001:db8::/32"}}), ours,
			"KubeProxyDeletesVirtualServers", []string{"add 203.0.113.0/24 to"}},
		{"ipvs Proxy, untold", kubeproxy.Facts{Running: true, Mode: kubeproxy.IPVS}, ours, "KubeProxyDeletesVirtualServers?", []string{"may delete"}},
		{"ipvs by traces", kubeproxy.Facts{Mode: kubeproxy.IPVS, Traces: []string{"interface kube-ipvs0"}}, ours, "KubeProxyDeletesVirtualServers?", nil},
		{"ipvs VIP, a Service wholly ours", running(kubeproxy.IPVS, kubeproxy.Facts{StrictARP: true}), Situation{Pools: pools, Complete: []netip.Addr{netip.MustParseAddr("198.51.100.7")}},
			"KubeProxyDeletesVirtualServers", []string{"add 198.51.100.7/32 to"}},
		{"ipvs Proxy, a Service wholly ours, its network excluded", running(kubeproxy.IPVS, kubeproxy.Facts{ExcludeCIDRs: append([]string{"198.51.100.0/24"}, all...)}),
			Situation{Pools: pools, Proxy: true, Complete: []netip.Addr{netip.MustParseAddr("198.51.100.7")}}, "", nil},
		{"any, serviceProxy", running(kubeproxy.IPVS, kubeproxy.Facts{}), Situation{Pools: pools, Proxy: true, ServiceProxy: true, IPVS: true},
			"KubeProxyAlongsideServiceProxy", []string{"in mode ipvs", "serviceProxy: false"}},
		{"traces, serviceProxy", kubeproxy.Facts{Mode: kubeproxy.NFTables, Traces: []string{"nftables table ip kube-proxy"}}, Situation{ServiceProxy: true},
			"KubeProxyResidualRules", []string{"kube-proxy --cleanup", "nftables table ip kube-proxy"}},
	}
	for _, c := range []struct {
		name    string
		other   kubeproxy.Other
		s       Situation
		want    string
		message []string
	}{
		{"kube-router, serviceProxy", kubeproxy.KubeRouter, Situation{ServiceProxy: true, Proxy: true, IPVS: true},
			"OtherProxyAlongsideServiceProxy", []string{"kube-router", "serviceProxy: false"}},
		{"kube-router Proxy", kubeproxy.KubeRouter, ours, "OtherProxyDeletesVirtualServers",
			[]string{"dataplane: nftables", "--excluded-cidrs"}},
		{"kube-router Proxy without IPVS", kubeproxy.KubeRouter, Situation{Pools: pools, Proxy: true}, "", nil},
		{"kube-router VIP", kubeproxy.KubeRouter, theirs, "", nil},
		{"Calico eBPF, serviceProxy", kubeproxy.CalicoEBPF, Situation{ServiceProxy: true}, "OtherProxyAlongsideServiceProxy",
			[]string{"Calico's eBPF"}},
		{"Calico eBPF Proxy", kubeproxy.CalicoEBPF, ours, "OtherProxySeesPacketsFirst?", []string{"docs/reference/network-plugins.md"}},
		{"Calico eBPF VIP", kubeproxy.CalicoEBPF, theirs, "", nil},
		{"Cilium, serviceProxy", kubeproxy.Cilium, Situation{ServiceProxy: true}, "OtherProxyAlongsideServiceProxy?",
			[]string{"kubeProxyReplacement is false"}},
		{"Cilium Proxy", kubeproxy.Cilium, ours, "OtherProxySeesPacketsFirst?", []string{"Cilium", "docs/reference/network-plugins.md"}},
		{"Cilium VIP", kubeproxy.Cilium, theirs, "", nil},
	} {
		added := cases[0]
		added.name, added.f, added.s, added.want, added.message = c.name, kubeproxy.Facts{Others: []kubeproxy.Other{c.other}}, c.s, c.want, c.message
		cases = append(cases, added)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			text := ""
			_, problems := Facts{Proxy: c.f, Ours: c.s}.proxies()
			for _, p := range problems {
				reason := p.Reason
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
			if _, again := (Facts{Proxy: c.f, Ours: c.s}).proxies(); fmt.Sprint(again) != fmt.Sprint(problems) {
				t.Error("not the same twice")
			}
		})
	}
}
