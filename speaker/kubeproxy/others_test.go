package kubeproxy_test

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
)

// addLink makes an interface, whose kind does not matter here.
func addLink(name string) func() error {
	return func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}
}

func TestKernelOthers(t *testing.T) {
	s := netspace.New(t)
	for _, step := range []struct{ name, want string }{
		{"eth7", "[]"}, {"kube-bridge", "[]"},
		{"kube-dummy-if", "[kube-router's service proxy]"},
		{"cilium_host", "[kube-router's service proxy Cilium]"},
		{"bpfin.cali", "[kube-router's service proxy Calico's eBPF data plane Cilium]"},
	} {
		s.Must(t, func() error {
			if err := addLink(step.name)(); err != nil {
				return err
			}
			found, err := kubeproxy.KernelOthers()
			if got := fmt.Sprint(found); got != step.want {
				t.Errorf("with %s: %s, want %s", step.name, got, step.want)
			}
			return err
		})
	}
}

// Calico is found by its chains of iptables or nftables, or its interfaces where chains cannot be seen; what it does
// about IPVS by the chain that it makes for that alone. Its eBPF data plane leaves nothing to bypass.
func TestFindCalico(t *testing.T) {
	polices, knows := kubeproxy.Calico{Polices: true}, kubeproxy.Calico{Polices: true, IPVS: true}
	for name, steps := range map[string][]struct {
		do   func() error
		want kubeproxy.Calico
	}{
		"iptables": {
			{nft("add table ip filter; add chain ip filter KUBE-FORWARD"), kubeproxy.Calico{}},
			{nft("add table ip other; add chain ip other cali-FORWARD"), kubeproxy.Calico{}},
			{nft("add chain ip filter cali-FORWARD"), polices},
			{nft("add chain ip filter cali-forward-check"), knows},
			{addLink("bpfin.cali"), kubeproxy.Calico{}},
		},
		"nftables": {
			{nft("add table ip calico; add chain ip calico filter-cali-FORWARD"), polices},
			{nft("add chain ip calico filter-cali-forward-check"), knows},
		},
		"iptables-legacy": {{addLink("eth7"), kubeproxy.Calico{}}, {addLink("cali0123"), polices}},
	} {
		s := netspace.New(t)
		for i, step := range steps {
			s.Must(t, func() error {
				if err := step.do(); err != nil {
					return err
				}
				got, err := kubeproxy.FindCalico()
				if got != step.want {
					t.Errorf("%s, step %d: %+v, want %+v", name, i, got, step.want)
				}
				return err
			})
		}
	}
}
