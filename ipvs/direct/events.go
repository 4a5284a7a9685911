package direct

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// linkWatch receives the kernel's notifications about interfaces, their addresses, neighbors and forwarding entries
// (rtnetlink(7)) in one network namespace.
type linkWatch struct {
	fd int
	in [1 << 16]byte
}

func openLinkWatch() (*linkWatch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_NEIGH | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to changes of interfaces: %w", err)
	}
	return &linkWatch{fd: fd}, nil
}

func (w *linkWatch) close() { unix.Close(w.fd) }

// touched reports whether there was a message about one of these interfaces since the last call, or one was lost. It
// does not wait.
func (w *linkWatch) touched(ours func(index int) bool) (touched bool, err error) {
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
			return touched, fmt.Errorf("read the changes of interfaces: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(w.in[:size])
		if err != nil {
			touched = true
		}
		for _, m := range messages {
			// struct ifinfomsg, ndmsg and ifaddrmsg have the index of the interface here
			const at, end = 4, 8
			touched = touched || len(m.Data) >= end && ours(int(binary.NativeEndian.Uint32(m.Data[at:end])))
		}
	}
}
