package returnroute

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// routeWatch receives the kernel's notifications about routes, rules and interfaces (rtnetlink(7)) in one network
// namespace.
type routeWatch struct {
	fd int
	in [1 << 16]byte
}

func openRouteWatch() (*routeWatch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	w := &routeWatch{fd: fd}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, group := range []int{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to changes of routes: %w", err)
	}
	return w, nil
}

func (w *routeWatch) close() { unix.Close(w.fd) }

// touched reports whether there was a message about a rule, one of our routes, or one of these interfaces since the
// last call, or one was lost. It does not wait.
func (w *routeWatch) touched(ours func(index int) bool) (touched bool, err error) {
	for {
		size, _, err := unix.Recvfrom(w.fd, w.in[:], 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return touched, nil
		case errors.Is(err, unix.ENOBUFS):
			touched = true
			continue
		case err != nil:
			return touched, fmt.Errorf("read the changes of routes: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(w.in[:size])
		if err != nil {
			touched = true
		}
		for _, m := range messages {
			touched = touched || ours != nil && isOurs(m, ours)
		}
	}
}

// isOurs reports whether a message is about a rule, a route in one of our tables, or one of these interfaces. When an
// interface is set down, the kernel deletes its routes without a message of their own (fib_sync_down_dev).
func isOurs(m syscall.NetlinkMessage, ours func(index int) bool) bool {
	switch m.Header.Type {
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return inTable(m)
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		const at, end = 4, 8 // of ifi_index in struct ifinfomsg
		return len(m.Data) >= end && ours(int(binary.NativeEndian.Uint32(m.Data[at:end])))
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
