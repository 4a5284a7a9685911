package member

import (
	"errors"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchSize is how many datagrams one system call reads: those of one interval with a few nodes.
const batchSize = 16

// batch is the memory for the datagrams of one recvmmsg(2).
type batch struct {
	headers [batchSize]mmsghdr
	vectors [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrInet6 // also fits unix.RawSockaddrInet4
	control [batchSize][256]byte
	data    [batchSize][MaxDatagram + 1]byte
}

// mmsghdr is struct mmsghdr (recvmmsg(2)).
type mmsghdr struct {
	unix.Msghdr
	size uint32
	_    [unsafe.Sizeof(uintptr(0)) - 4]byte
}

// read reads datagrams of a socket, and reports whether none is left.
func (b *batch) read(s *socket) (n int, empty bool, err error) {
	for i := range b.headers {
		b.vectors[i].Base = &b.data[i][0]
		b.vectors[i].SetLen(len(b.data[i]))
		h := &b.headers[i].Msghdr
		*h = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&b.names[i])), Namelen: unix.SizeofSockaddrInet6,
			Iov: &b.vectors[i], Control: &b.control[i][0]}
		h.SetIovlen(1)
		h.SetControllen(len(b.control[i]))
	}
	count, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&b.headers[0])), batchSize,
		unix.MSG_DONTWAIT, 0, 0)
	switch {
	case errors.Is(errno, unix.EAGAIN):
		return 0, true, nil
	case errno != 0:
		return 0, false, errno
	}
	return int(count), count < batchSize, nil
}

// at returns a datagram of the last read, and its metadata.
func (b *batch) at(s *socket, i int) (a arrival, data []byte) {
	h := &b.headers[i]
	a.size = int(h.size)
	if h.Flags&unix.MSG_TRUNC != 0 {
		a.size = len(b.data[i]) // longer than any datagram of a speaker
	}
	switch name := &b.names[i]; name.Family {
	case unix.AF_INET:
		a.source = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr)
	case unix.AF_INET6:
		a.source = netip.AddrFrom16(name.Addr)
	}
	s.control(b.control[i][:min(int(h.Controllen), len(b.control[i]))], &a)
	a.group = s.index != 0
	return a, b.data[i][:a.size]
}
