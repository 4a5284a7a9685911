package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nftaGenID is NFTA_GEN_ID of include/uapi/linux/netfilter/nf_tables.h.
const nftaGenID = 1

// Generation returns the number that every change of nftables, by any program, increments in the network namespace of
// the calling thread. As long as it is unchanged, [Policies.Apply] has the same result. Generation fails if
// iptables-legacy is in use, which is not part of nftables.
func Generation() (uint32, error) {
	if legacy := iptablesInUse(nil); len(legacy) > 0 {
		return 0, fmt.Errorf("%s is in use, and sends no notifications of changes", legacy[0].program)
	}
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_UNSPEC, Version: nl.NFNETLINK_V0})
	answers, err := request.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of nftables: %w", err)
	}
	for _, answer := range answers {
		attrs, err := nl.ParseRouteAttr(answer[min(len(answer), nl.SizeofNfgenmsg):])
		if err != nil {
			return 0, fmt.Errorf("read the generation of nftables: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type&nl.NLA_TYPE_MASK == nftaGenID && len(a.Value) >= 4 {
				return binary.BigEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, errors.New("ask for the generation of nftables: the kernel's answer lacks it")
}
