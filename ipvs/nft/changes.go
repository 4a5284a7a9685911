package nft

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// changes counts the transactions that touched our tables, by the kernel's notifications, so that nothing need be listed
// to find out that nothing happened (include/uapi/linux/netfilter/nf_tables.h).
type changes struct {
	fd int
	// open is set between the first message about our table of a family and the end of its transaction.
	open [len(families)]bool
}

// notificationBuffer holds the notifications of some ten thousand elements. When it overflows the table is listed.
const notificationBuffer = 8 << 20

// watchChanges counts from now on, in the network namespace of the calling thread.
func watchChanges() (*changes, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, notificationBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, notificationBuffer) // less is only slower
	}
	group := uint32(1) << (unix.NFNLGRP_NFTABLES - 1)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: group}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to changes of nftables: %w", err)
	}
	return &changes{fd: fd}, nil
}

// errLost says that notifications were lost: anything may have happened.
var errLost = errors.New("notifications lost")

// count returns how many transactions touched our table of each family since the last call. It does not wait.
func (c *changes) count() (n [len(families)]int, err error) {
	buf := make([]byte, 1<<16)
	for {
		size, _, recvErr := unix.Recvfrom(c.fd, buf, 0)
		switch {
		case errors.Is(recvErr, unix.EINTR):
		case errors.Is(recvErr, unix.EAGAIN):
			return n, err
		case errors.Is(recvErr, unix.ENOBUFS):
			err = errLost
		case recvErr != nil:
			return n, fmt.Errorf("read the changes of nftables: %w", recvErr)
		default:
			messages, parseErr := syscall.ParseNetlinkMessage(buf[:size])
			if parseErr != nil {
				err = errLost
			}
			for _, m := range messages {
				c.add(m, &n)
			}
		}
	}
}

// add takes one message, and when it ends a transaction counts it for every table of ours that was touched.
func (c *changes) add(m syscall.NetlinkMessage, counts *[len(families)]int) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return
	}
	if m.Header.Type&0xff == unix.NFT_MSG_NEWGEN {
		for i, touched := range c.open {
			if touched {
				counts[i]++
			}
		}
		c.open = [len(families)]bool{}
		return
	}
	number, name := tableOf(m.Data)
	for i, f := range families {
		if name == TableName && number == f.number {
			c.open[i] = true
		}
	}
}

// tableOf returns the family and the name of the table that a message is about: attribute 1 names it in every kind of message
// (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE, NFTA_SET_ELEM_LIST_TABLE and so on).
func tableOf(data []byte) (family byte, name string) {
	const header, align = 4, 4 // struct nfgenmsg, the family first; the library panics on what is not aligned
	if len(data) < header || len(data)%align != 0 {
		return 0, ""
	}
	attrs, err := nl.ParseRouteAttr(data[header:])
	if err != nil {
		return 0, ""
	}
	for _, a := range attrs {
		if a.Attr.Type&nl.NLA_TYPE_MASK == unix.NFTA_TABLE_NAME {
			return data[0], strings.TrimRight(string(a.Value), "\x00")
		}
	}
	return 0, ""
}
