package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
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
