// Package routewatch receives the kernel's notifications about interfaces, addresses, neighbors, routes and rules
// (rtnetlink(7)) in one network namespace, so that no listing is needed to detect that nothing changed.
package routewatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Watch receives the notifications of some groups. It is for one caller at a time.
type Watch struct {
	fd int
	in [1 << 16]byte
}

// Open subscribes to groups (unix.RTNLGRP_*) in the network namespace of the calling thread.
func Open(groups ...int) (*Watch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, group := range groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to notifications of rtnetlink: %w", err)
	}
	return &Watch{fd: fd}, nil
}

// Close ends the subscription.
func (w *Watch) Close() { unix.Close(w.fd) }

// Changed reports whether a message since the last call matches, or one was lost. It does not wait.
func (w *Watch) Changed(matches func(syscall.NetlinkMessage) bool) (changed bool, err error) {
	for {
		size, _, err := unix.Recvfrom(w.fd, w.in[:], 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return changed, nil
		case errors.Is(err, unix.ENOBUFS):
			changed = true
			continue
		case err != nil:
			return changed, fmt.Errorf("read notifications of rtnetlink: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(w.in[:size])
		if err != nil {
			changed = true
		}
		for _, m := range messages {
			changed = changed || matches(m)
		}
	}
}

// Discard drops the messages that have arrived.
func (w *Watch) Discard() error {
	_, err := w.Changed(func(syscall.NetlinkMessage) bool { return false })
	return err
}

// Interface returns the index of the interface in a message about a link, a neighbor or an address. struct ifinfomsg,
// ndmsg and ifaddrmsg have it in the same place.
func Interface(m syscall.NetlinkMessage) (index int, ok bool) {
	const at, end = 4, 8
	if len(m.Data) < end {
		return 0, false
	}
	return int(binary.NativeEndian.Uint32(m.Data[at:end])), true
}
