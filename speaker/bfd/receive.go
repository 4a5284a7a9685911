package bfd

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kind is the kind of a receiving socket: there is one per family and port.
type kind struct{ six, multiHop bool }

func kindOf(k Key) kind { return kind{!k.Peer.Is4(), k.MultiHop} }

func (k kind) String() string {
	family := "IPv4"
	if k.six {
		family = "IPv6"
	}
	return fmt.Sprintf("UDP port %d of %s", portOf(k.multiHop), family)
}

// receiver is a socket for the packets of all sessions of a kind. Reading does not allocate.
type receiver struct {
	kind
	fd      int // -1 while closed
	problem string
	flood

	header  unix.Msghdr
	vec     unix.Iovec
	name    unix.RawSockaddrAny
	control [128]byte
	data    [256]byte
}

// receiveBuffer is the size of the receive buffer, enough for the packets that arrive while the thread stalls for a
// while.
const receiveBuffer = 1 << 20

func (r *receiver) open() error {
	family, any := unix.AF_INET, netip.IPv4Unspecified()
	if r.six {
		family, any = unix.AF_INET6, netip.IPv6Unspecified()
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open a BFD socket: %w", err)
	}
	type option struct{ level, name, value int }
	options := []option{{unix.IPPROTO_IP, unix.IP_RECVTTL, 1}, {unix.IPPROTO_IP, unix.IP_PKTINFO, 1}}
	if r.six {
		options = []option{{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1}, {unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1}, {unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1}}
	}
	for _, o := range append(options, option{unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer}) {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			unix.Close(fd)
			return fmt.Errorf("set option %d of level %d of the socket on %v: %w", o.name, o.level, r, err)
		}
	}
	if err := r.attach(fd, r.passAll()); err != nil {
		unix.Close(fd)
		return err
	}
	if err := unix.Bind(fd, sockaddr(any, portOf(r.multiHop), 0)); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("receive on %v: %w: another BFD program uses the port on this node: stop it, or change its port", r, err)
		}
		return fmt.Errorf("receive on %v: %w", r, err)
	}
	r.fd, r.flood = fd, flood{gates: r.gates, initial: map[uint32]int{}, overLimit: map[uint32]bool{}}
	return nil
}

func (r *receiver) close() {
	if r.fd >= 0 {
		unix.Close(r.fd)
		r.fd = -1
	}
}

// read returns the next datagram and the index of its interface. It is valid until the next read.
func (r *receiver) read() (in Datagram, index int, ok bool) {
	r.vec.Base = &r.data[0]
	r.vec.SetLen(len(r.data))
	r.header = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&r.name)), Namelen: unix.SizeofSockaddrAny, Iov: &r.vec, Control: &r.control[0]}
	r.header.SetIovlen(1)
	r.header.SetControllen(len(r.control))
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&r.header)), unix.MSG_DONTWAIT)
	if errno != 0 { // EAGAIN, or an error that the next read does not return
		return in, 0, false
	}
	in = Datagram{MultiHop: r.multiHop, Data: r.data[:n]}
	if r.six {
		in.Source = netip.AddrFrom16((*unix.RawSockaddrInet6)(unsafe.Pointer(&r.name)).Addr)
	} else {
		in.Source = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&r.name)).Addr)
	}
	index = r.controls(&in)
	return in, index, true
}

// controls reads the TTL, the local address and the interface from the control messages (cmsg(3)).
func (r *receiver) controls(in *Datagram) (index int) {
	for b := r.control[:r.header.Controllen]; len(b) >= unix.SizeofCmsghdr; {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		length := int(h.Len)
		if length < unix.CmsgLen(0) || length > len(b) {
			return index
		}
		body := b[unix.CmsgLen(0):length]
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL && len(body) >= 4, h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT && len(body) >= 4:
			in.TTL = int(*(*int32)(unsafe.Pointer(&body[0])))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(body) >= unix.SizeofInet4Pktinfo:
			info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&body[0]))
			in.Local, index = netip.AddrFrom4(info.Addr), int(info.Ifindex)
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(body) >= unix.SizeofInet6Pktinfo:
			info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&body[0]))
			in.Local, index = netip.AddrFrom16(info.Addr), int(info.Ifindex)
		}
		next := unix.CmsgSpace(length - unix.CmsgLen(0))
		if next > len(b) {
			return index
		}
		b = b[next:]
	}
	return index
}

// interfaceName returns the name of an interface, "" if there is none.
func (r *receiver) interfaceName(index int) string {
	request, err := unix.NewIfreq("")
	if err != nil {
		return ""
	}
	request.SetUint32(uint32(index))
	if err := unix.IoctlIfreq(r.fd, unix.SIOCGIFNAME, request); err != nil {
		return ""
	}
	return request.Name()
}
