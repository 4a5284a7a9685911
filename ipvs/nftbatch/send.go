package nftbatch

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// sendBuffer is a limit, not an allocation: the kernel accepts no batch that exceeds it.
const sendBuffer = 64 << 20

// Send carries out the batch, in the network namespace of the calling thread. The batch must not be used again.
func (b *Batch) Send() error {
	if b.len == 0 {
		return nil
	}
	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return b.send(fd)
}

func open() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("open a netlink socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer); err != nil {
		unix.Close(fd)
		return 0, fmt.Errorf("enlarge the buffer of a netlink socket: %w", err)
	}
	return fd, nil
}

func (b *Batch) send(fd int) error {
	// The kernel answers errors, and those messages that ask for it: the last one.
	flags := b.buf[b.start+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	b.end()
	last := b.seq
	b.header(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	b.length()
	if err := unix.Sendto(fd, b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send %d changes of nftables table %s: %w", b.len, b.table, err)
	}
	if err := answer(fd, last); err != nil {
		return fmt.Errorf("make %d changes of nftables table %s: %w", b.len, b.table, err)
	}
	return nil
}

// errNoAnswer reports that the kernel did not answer the batch.
var errNoAnswer = errors.New("no answer of the kernel")

// answer reads the answers, which the kernel has queued when a batch has been sent. It returns the first error. The
// message with number last asked for an answer.
func answer(fd int, last uint32) (failed error) {
	answered := false
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if failed == nil && !answered {
				return errNoAnswer
			}
			return failed
		case err != nil:
			return errors.Join(failed, err)
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofNlMsghdr+4; {
			length := int(binary.NativeEndian.Uint32(rest))
			if length < unix.SizeofNlMsghdr+4 || length > len(rest) {
				break
			}
			if binary.NativeEndian.Uint16(rest[4:]) == unix.NLMSG_ERROR {
				answered = answered || binary.NativeEndian.Uint32(rest[8:]) == last
				if errno := -int32(binary.NativeEndian.Uint32(rest[unix.SizeofNlMsghdr:])); errno != 0 && failed == nil {
					failed = unix.Errno(errno)
				}
			}
			rest = rest[min(len(rest), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
		}
	}
}
