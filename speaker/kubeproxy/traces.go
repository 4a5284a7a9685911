package kubeproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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
