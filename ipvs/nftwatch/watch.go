// Package nftwatch counts the transactions of nftables that touch certain tables, by the kernel's notifications
// (include/uapi/linux/netfilter/nf_tables.h), so that no listing is needed to detect that nothing changed.
package nftwatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrLost reports that notifications were lost: any change may have happened.
var ErrLost = errors.New("notifications of nftables lost")

// Families are the indices of [Counts].
const (
	IP = iota
	IP6
	NumFamilies
)

// Counts are numbers of transactions by the family of the table.
type Counts [NumFamilies]int

var numbers = [NumFamilies]byte{IP: unix.NFPROTO_IPV4, IP6: unix.NFPROTO_IPV6}

// Watch counts the transactions that touch the tables of one name in one network namespace. It is for one caller at a
// time.
type Watch struct {
	name string
	fd   int
	// open is set between the first message about the table of a family and the end of its transaction.
	open [NumFamilies]bool
	in   [1 << 16]byte
}

// buffer is a limit, not an allocation. The kernel sends all notifications of a transaction at its end, faster than
// they can be read, so it must hold those of the largest one: a hundred thousand elements (TestGreatTransaction).
const buffer = 64 << 20

// Open starts counting, in the network namespace of the calling thread.
func Open(table string) (*Watch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer) // a smaller buffer is only slower
	}
	group := uint32(1) << (unix.NFNLGRP_NFTABLES - 1)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: group}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to changes of nftables: %w", err)
	}
	return &Watch{name: table, fd: fd}, nil
}

// Close ends the watch.
func (w *Watch) Close() { unix.Close(w.fd) }

// Count returns the number of transactions that touched the tables since the last call. It does not wait. With an
// error, [ErrLost] or one of the socket, there may have been more.
func (w *Watch) Count() (counts Counts, err error) {
	for {
		size, _, recvErr := unix.Recvfrom(w.fd, w.in[:], 0)
		switch {
		case errors.Is(recvErr, unix.EINTR):
		case errors.Is(recvErr, unix.EAGAIN):
			return counts, err
		case errors.Is(recvErr, unix.ENOBUFS):
			err = ErrLost
		case recvErr != nil:
			return counts, fmt.Errorf("read the changes of nftables: %w", recvErr)
		default:
			messages, parseErr := syscall.ParseNetlinkMessage(w.in[:size])
			if parseErr != nil {
				err = ErrLost
			}
			for _, m := range messages {
				w.add(m, &counts)
			}
		}
	}
}

// add processes one message. At the end of a transaction it counts the transaction for every touched table.
func (w *Watch) add(m syscall.NetlinkMessage, counts *Counts) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return
	}
	if m.Header.Type&0xff == unix.NFT_MSG_NEWGEN {
		for i, touched := range w.open {
			if touched {
				counts[i]++
			}
		}
		w.open = [NumFamilies]bool{}
		return
	}
	number, name := tableOf(m.Data)
	for i := range w.open {
		if name == w.name && number == numbers[i] {
			w.open[i] = true
		}
	}
}

// tableOf returns the family and the name of the table of a message: attribute 1 has the name in every kind of message
// (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE, NFTA_SET_ELEM_LIST_TABLE and so on).
func tableOf(data []byte) (family byte, name string) {
	const header = 4 // struct nfgenmsg, the family first
	if len(data) < header {
		return 0, ""
	}
	for attrs := data[header:]; len(attrs) >= unix.SizeofNlAttr; {
		length := int(binary.NativeEndian.Uint16(attrs))
		if length < unix.SizeofNlAttr || length > len(attrs) {
			return 0, ""
		}
		if binary.NativeEndian.Uint16(attrs[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == unix.NFTA_TABLE_NAME {
			return data[0], unix.ByteSliceToString(attrs[unix.SizeofNlAttr:length])
		}
		attrs = attrs[min(len(attrs), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return 0, ""
}

// Alone calls transact, which returns the transactions that it carried out, and reports whether there was no other one
// since the last call. It reports false after an error, or if notifications were lost.
func (w *Watch) Alone(transact func() (ours Counts, err error)) (alone bool, err error) {
	before, lostBefore := w.Count()
	ours, err := transact()
	if err != nil {
		return false, err
	}
	after, lostAfter := w.Count()
	return lostBefore == nil && lostAfter == nil && before == (Counts{}) && after == ours, nil
}
