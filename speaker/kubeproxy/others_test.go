package kubeproxy_test

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
)

// addLink creates an interface; its kind does not matter here.
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

// Calico is detected by its chains of iptables or nftables, or by its interfaces if chains are not visible. Its eBPF
// data plane leaves nothing to bypass.
func TestCalicoPolices(t *testing.T) {
	for name, steps := range map[string][]struct {
		do   func() error
		want bool
	}{
		"iptables": {
			{nft("add table ip filter; add chain ip filter KUBE-FORWARD"), false},
			{nft("add table ip other; add chain ip other cali-FORWARD"), false},
			{nft("add chain ip filter cali-FORWARD"), true},
			{addLink("bpfin.cali"), false},
		},
		"nftables": {
			{nft("add table ip calico; add chain ip calico cali-FORWARD"), false},
			{nft("add chain ip calico filter-cali-FORWARD"), true},
		},
		"iptables-legacy": {{addLink("eth7"), false}, {addLink("cali0123"), true}},
	} {
		s := netspace.New(t)
		for i, step := range steps {
			s.Must(t, func() error {
				if err := step.do(); err != nil {
					return err
				}
				got, err := kubeproxy.CalicoPolices()
				if got != step.want {
					t.Errorf("%s, step %d: %t, want %t", name, i, got, step.want)
				}
				return err
			})
		}
	}
}
