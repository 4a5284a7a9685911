package kubeproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/link/dump"
)

// KernelTraces lists what only a kube-proxy creates in the network namespace of the calling thread: its interface, its
// nftables tables, and its iptables chains (where iptables writes nftables, as in all distributions since 2021). Mode
// ipvs creates chains as well.
func KernelTraces() (traces []string, mode Mode, err error) {
	tables, err := list(unix.NFT_MSG_GETTABLE, unix.NFTA_TABLE_NAME, 0)
	if err != nil {
		return nil, Unknown, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		if t.name == "kube-proxy" {
			traces, mode = append(traces, "nftables table "+t.family+" kube-proxy"), NFTables
		}
	}
	chains, err := list(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_TABLE)
	if err != nil {
		return nil, Unknown, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, c := range chains {
		if c.name == "KUBE-SERVICES" && c.table == "nat" {
			traces, mode = append(traces, "iptables chain KUBE-SERVICES of "+c.family), IPTables
		}
	}
	switch _, err := netlink.LinkByName("kube-ipvs0"); {
	case err == nil:
		traces, mode = append(traces, "interface kube-ipvs0"), IPVS
	case !errors.As(err, &netlink.LinkNotFoundError{}):
		return nil, Unknown, fmt.Errorf("find the interface kube-ipvs0: %w", err)
	}
	slices.Sort(traces)
	return traces, mode, nil
}

// object is a table or a chain.
type object struct{ family, table, name string }

var families = map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}

// list dumps objects of nftables. A listing that is interrupted by a change is restarted.
func list(command int, nameAttr, tableAttr uint16) (objects []object, err error) {
	const attempts = 5
	for range attempts {
		objects = nil
		request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|command, unix.NLM_F_DUMP)
		request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_UNSPEC, Version: nl.NFNETLINK_V0})
		err = request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
			if o, ok := read(message, nameAttr, tableAttr); ok {
				objects = append(objects, o)
			}
			return true
		})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return objects, err
}

func read(message []byte, nameAttr, tableAttr uint16) (o object, ok bool) {
	if len(message) < nl.SizeofNfgenmsg {
		return o, false
	}
	o.family = families[message[0]]
	for b := message[nl.SizeofNfgenmsg:]; len(b) >= unix.SizeofNlAttr; {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK
		if size < unix.SizeofNlAttr || size > len(b) {
			break
		}
		switch value := b[unix.SizeofNlAttr:size]; kind {
		case nameAttr:
			o.name = nl.BytesToString(value)
		case tableAttr:
			o.table = nl.BytesToString(value)
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return o, o.name != "" && o.family != ""
}

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
