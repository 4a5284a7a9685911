package kubeproxy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Other is a service proxy that is no kube-proxy. docs/cni.md has the sources.
type Other string

// The others, by the interface that each makes.
const (
	KubeRouter Other = "kube-router's service proxy"
	CalicoEBPF Other = "Calico's eBPF data plane"
	// Cilium serves ClusterIPs of Pods in any case, and all else with kubeProxyReplacement, which the node does not show.
	Cilium Other = "Cilium"
)

var others = []struct {
	name  string
	proxy Other
}{{"kube-dummy-if", KubeRouter}, {"bpfin.cali", CalicoEBPF}, {"cilium_host", Cilium}}

// KernelOthers returns the service proxies other than kube-proxy in the network namespace of the calling thread.
func KernelOthers() (found []Other, err error) {
	for _, o := range others {
		switch _, err := netlink.LinkByName(o.name); {
		case err == nil:
			found = append(found, o.proxy)
		case !errors.As(err, &netlink.LinkNotFoundError{}):
			return nil, fmt.Errorf("look for the interface %s: %w", o.name, err)
		}
	}
	return found, nil
}

// Calico is what is known of Calico's NetworkPolicies on this node.
type Calico struct {
	// Polices is set where rules of Felix, its agent, police what is forwarded to Pods: its iptables and nftables data
	// planes.
	Polices bool
	// IPVS is set where they police what IPVS sends to Pods as well. Felix decides that when it starts: by the interface
	// kube-ipvs0.
	IPVS bool
}

// The names of Felix: its chains in the table filter of iptables, and in its table of nftables with the former table's
// name before them.
const (
	calicoTable      = "calico"
	calicoForward    = "cali-FORWARD"
	calicoIPVS       = "cali-forward-check"
	calicoInterfaces = "cali"
)

// FindCalico looks for it in the network namespace of the calling thread. Chains of iptables-legacy cannot be seen:
// there the interfaces of Pods speak for it, and nothing for IPVS.
func FindCalico() (c Calico, err error) {
	chains, err := list(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_TABLE)
	if err != nil {
		return c, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, chain := range chains {
		name := chain.name
		if chain.table == calicoTable {
			name = strings.TrimPrefix(name, "filter-")
		} else if chain.table != "filter" {
			continue
		}
		c.Polices, c.IPVS = c.Polices || name == calicoForward, c.IPVS || name == calicoIPVS
	}
	links, err := netlink.LinkList()
	if err != nil {
		return c, fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		switch name := link.Attrs().Name; {
		case name == "bpfin.cali":
			return Calico{}, nil // its eBPF programs police every packet of a Pod
		case strings.HasPrefix(name, calicoInterfaces):
			c.Polices = true
		}
	}
	return c, nil
}
