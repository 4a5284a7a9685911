package returnroute

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/routewatch"
)

// groups have a notification for each change of the return routes.
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
}

// concerns reports whether a message is about a rule, a route in one of our tables, or the interface of one. When an
// interface is set down, the kernel deletes its routes without a message of their own (fib_sync_down_dev).
func (d *Driver) concerns(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return inTable(m)
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		index, ok := routewatch.Interface(m)
		_, is := d.indexes[index]
		return ok && is
	}
	return false
}

// inTable reports whether a message is about a route in one of our tables.
func inTable(m syscall.NetlinkMessage) bool {
	const at = 4 // of rtm_table in struct rtmsg, which has one octet: the attribute has a greater number
	if len(m.Data) <= at || m.Data[at] != unix.RT_TABLE_COMPAT {
		return false
	}
	attrs, err := syscall.ParseNetlinkRouteAttr(&m)
	if err != nil {
		return true
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.RTA_TABLE && len(a.Value) >= 4 {
			return isTable(int(binary.NativeEndian.Uint32(a.Value)))
		}
	}
	return false
}
