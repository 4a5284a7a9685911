// Package inetconf sets kernel parameters of IPv4 interfaces over netlink. That needs CAP_NET_ADMIN but no right to
// write to /proc/sys, which is read-only in a container without privileges.
package inetconf

import (
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The parameters (include/uapi/linux/ip.h).
const (
	Forwarding = 1
	RPFilter   = 8
)

// inetConf is IFLA_INET_CONF (include/uapi/linux/if_link.h).
const inetConf = 1

// Set sets a parameter of an interface in the network namespace of the calling thread.
func Set(link netlink.Link, parameter int, value uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(parameter, nl.Uint32Attr(value))
	req.AddData(msg)
	req.AddData(spec)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
