package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// conn is a generic netlink socket to IPVS, and a socket for the older interface of options.
//
// The kernel processes a request during the send call and has queued every response when the call returns. Therefore
// nothing here ever waits, and many requests go in one message.
type conn struct {
	fd     int
	option int
	family uint16
	seq    uint32
	out    []byte
	in     []byte
}

// The kernel fills at most 32 KiB at a time (net/netlink/af_netlink.c, netlink_recvmsg).
const inSize = 64 << 10

// receiveSpace holds a response to every request of a batch, even if all fail: about 1 KiB each in the kernel's
// accounting.
const receiveSpace = 2 * batchMost << 10

// newConn opens the sockets in the namespace, or in the calling thread's if ns is not open.
func newConn(ns netns.NsHandle, family uint16) (*conn, error) {
	c := &conn{fd: -1, option: -1, family: family, in: make([]byte, inSize)}
	err := within(ns, c.open)
	if err != nil {
		c.close()
		return nil, fmt.Errorf("open the IPVS netlink socket: %w", err)
	}
	return c, nil
}

func (c *conn) open() (err error) {
	if c.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC); err != nil {
		return err
	}
	if err := unix.Bind(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	// Error messages without a copy of the request.
	if err := unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return err
	}
	if unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveSpace) != nil {
		// Without CAP_NET_ADMIN this has no effect; the requests themselves will fail.
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveSpace)
	}
	c.option, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return err
}

func (c *conn) close() {
	for _, fd := range []*int{&c.fd, &c.option} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// begin starts a request in the send buffer and returns its number.
func (c *conn) begin(command uint8, flags uint16) uint32 {
	c.seq++
	c.out = beginRequest(c.out, c.family, flags|unix.NLM_F_REQUEST, c.seq, command)
	return c.seq
}

// errLost reports that responses of the kernel are missing.
var errLost = errors.New("the kernel's answer is missing")

// exchange sends the buffered requests. It calls failed with the number of each failed one, and found with each data
// message. The last request must ask for an acknowledgement or be a dump.
func (c *conn) exchange(found func(message []byte), failed func(seq uint32, err unix.Errno)) error {
	last := c.seq
	_, err := unix.SendmsgN(c.fd, c.out, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0)
	c.out = c.out[:0]
	if err != nil {
		return fmt.Errorf("send to the kernel: %w", err)
	}
	for done := false; !done; {
		n, _, err := unix.Recvfrom(c.fd, c.in, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
			return fmt.Errorf("%w: %w", errLost, err)
		case err != nil:
			return fmt.Errorf("receive from the kernel: %w", err)
		}
		if done, err = c.read(c.in[:n], last, found, failed); err != nil {
			return err
		}
	}
	return nil
}

// read processes one datagram and reports whether it ends the exchange.
func (c *conn) read(b []byte, last uint32, found func([]byte), failed func(uint32, unix.Errno)) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, fmt.Errorf("the kernel sent a message of %d octets in %d", size, len(b))
		}
		kind, seq := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:])
		body := b[unix.SizeofNlMsghdr:size]
		switch {
		case last-seq >= batchMost: // of an aborted exchange
		case kind == unix.NLMSG_ERROR || kind == unix.NLMSG_DONE:
			if len(body) >= 4 {
				if errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body))); errno != 0 {
					failed(seq, errno)
				}
			}
			done = done || seq == last
		case seq == last && found != nil:
			found(body)
		}
		b = b[min(align(size), len(b)):]
	}
	return done, nil
}

// drain discards the residual responses of a failed exchange.
func (c *conn) drain() {
	for {
		_, _, err := unix.Recvfrom(c.fd, c.in, unix.MSG_DONTWAIT)
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) {
			return
		}
	}
}

// Commands and attributes of include/uapi/linux/ip_vs.h.
const (
	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8

	attrService = 1
	attrDest    = 2

	svcFamily    = 1
	svcProtocol  = 2
	svcAddr      = 3
	svcPort      = 4
	svcScheduler = 6
	svcFlags     = 7
	svcTimeout   = 8
	svcNetmask   = 9

	destAddr    = 1
	destPort    = 2
	destForward = 3
	destWeight  = 4
	destUpper   = 5
	destLower   = 6

	forwardMask = 0x7

	genlVersion = 1
	genlHeader  = 4
)

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// beginRequest appends the headers of a request, which endRequest completes.
func beginRequest(b []byte, family, flags uint16, seq uint32, command uint8) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, family)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, command, genlVersion, 0, 0)
}

// endRequest writes the length of the request that begins at start.
func endRequest(b []byte, start int) {
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
}

// appendAttr appends an attribute with its padding.
func appendAttr(b []byte, kind uint16, value ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func appendUint16(b []byte, kind, value uint16) []byte {
	var v [2]byte
	binary.NativeEndian.PutUint16(v[:], value)
	return appendAttr(b, kind, v[:]...)
}

func appendUint32(b []byte, kind uint16, value uint32) []byte {
	var v [4]byte
	binary.NativeEndian.PutUint32(v[:], value)
	return appendAttr(b, kind, v[:]...)
}

func appendAddr(b []byte, kind uint16, addr netip.Addr) []byte {
	if addr.Is4() {
		v := addr.As4()
		return appendAttr(b, kind, v[:]...)
	}
	v := addr.As16()
	return appendAttr(b, kind, v[:]...)
}

// beginNest appends the header of a nested attribute.
func beginNest(b []byte, kind uint16) []byte {
	return appendAttr(b, kind|unix.NLA_F_NESTED)
}

func endNest(b []byte, start int) {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
}

// appendService appends a virtual server; settings are only needed to add or edit it.
func appendService(b []byte, key ipvs.Key, settings *ipvs.Settings) []byte {
	start := len(b)
	b = beginNest(b, attrService)
	b = appendUint16(b, svcFamily, familyOf(key.Addr))
	b = appendUint16(b, svcProtocol, uint16(key.Protocol))
	b = appendAddr(b, svcAddr, key.Addr)
	b = appendAttr(b, svcPort, byte(key.Port>>8), byte(key.Port))
	if settings != nil {
		b = appendAttr(b, svcScheduler, append([]byte(settings.Scheduler), 0)...)
		var flags [8]byte // flags and mask
		binary.NativeEndian.PutUint32(flags[:], uint32(settings.Flags&^ipvs.Hashed))
		binary.NativeEndian.PutUint32(flags[4:], math.MaxUint32)
		b = appendAttr(b, svcFlags, flags[:]...)
		b = appendUint32(b, svcTimeout, settings.Timeout)
		b = appendUint32(b, svcNetmask, netmaskOf(key.Addr))
	}
	endNest(b, start)
	return b
}

// appendDest appends a real server; rs is only needed to add or edit it.
func appendDest(b []byte, addr netip.AddrPort, rs *ipvs.RealServer) []byte {
	start := len(b)
	b = beginNest(b, attrDest)
	b = appendAddr(b, destAddr, addr.Addr())
	b = appendAttr(b, destPort, byte(addr.Port()>>8), byte(addr.Port()))
	if rs != nil {
		b = appendUint32(b, destForward, uint32(rs.Forward))
		b = appendUint32(b, destWeight, rs.Weight)
		b = appendUint32(b, destUpper, 0)
		b = appendUint32(b, destLower, 0)
	}
	endNest(b, start)
	return b
}
