package kubeproxy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/link/dump"
)

// Other is a service proxy other than kube-proxy. docs/reference/network-plugins.md has the sources.
type Other string

// The others, by the interface that each creates.
const (
	KubeRouter Other = "kube-router's service proxy"
	CalicoEBPF Other = "Calico's eBPF data plane"
	// Cilium always serves ClusterIPs of Pods, and everything else with kubeProxyReplacement, which is not visible on
	// the node.
	Cilium Other = "Cilium"
)

var others = []struct {
	name  string
	proxy Other
}{{"kube-dummy-if", KubeRouter}, {calicoEBPFDevice, CalicoEBPF}, {"cilium_host", Cilium}}

// KernelOthers returns the service proxies other than kube-proxy in the network namespace of the calling thread.
func KernelOthers() (found []Other, err error) {
	for _, o := range others {
		switch _, err := netlink.LinkByName(o.name); {
		case err == nil:
			found = append(found, o.proxy)
		case !errors.As(err, &netlink.LinkNotFoundError{}):
			return nil, fmt.Errorf("find the interface %s: %w", o.name, err)
		}
	}
	return found, nil
}

// The names of Felix, Calico's agent: its chain in iptables' table filter, the same in its nftables table, prefixed
// with the iptables table's name, and the prefix of the names of Pods' interfaces.
const (
	calicoTable      = "calico"
	calicoForward    = "cali-FORWARD"
	calicoInterfaces = "cali"
	calicoEBPFDevice = "bpfin.cali"
)

// CalicoPolices reports whether Calico's iptables or nftables data plane polices traffic forwarded to Pods, in the
// network namespace of the calling thread. Chains of iptables-legacy are not visible: Pods' interfaces indicate them.
// Calico's eBPF data plane polices at those interfaces, whatever sends the packet.
func CalicoPolices() (bool, error) {
	chains, err := list(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_TABLE)
	if err != nil {
		return false, fmt.Errorf("list nftables chains: %w", err)
	}
	polices := false
	for _, chain := range chains {
		polices = polices || chain.table == "filter" && chain.name == calicoForward ||
			chain.table == calicoTable && chain.name == "filter-"+calicoForward
	}
	links, err := dump.Complete(netlink.LinkList)
	if err != nil {
		return false, fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		switch name := link.Attrs().Name; {
		case name == calicoEBPFDevice:
			return false, nil
		case strings.HasPrefix(name, calicoInterfaces):
			polices = true
		}
	}
	return polices, nil
}
