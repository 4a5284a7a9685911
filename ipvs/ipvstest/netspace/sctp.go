package netspace

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ServeSCTP is ServeTCP over SCTP. It needs a kernel with SCTP.
func (s *Space) ServeSCTP(t testing.TB, addr, name string) {
	t.Helper()
	var listener net.Listener
	s.Must(t, func() error {
		file, err := socketSCTP(patience, netip.MustParseAddrPort(addr), func(fd int, sa unix.Sockaddr) error {
			if err := unix.Bind(fd, sa); err != nil {
				return err
			}
			return unix.Listen(fd, 16)
		})
		if err != nil {
			return fmt.Errorf("listen on SCTP %s: %w", addr, err)
		}
		defer file.Close()
		listener, err = net.FileListener(file)
		return err
	})
	serve(t, listener, name)
}

func (s *Space) dialSCTP(limit time.Duration, from, to string) (net.Conn, error) {
	var conn net.Conn
	err := s.Do(func() error {
		connect := func(fd int, sa unix.Sockaddr) error {
			if from != "" {
				if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(netip.MustParseAddr(from), 0))); err != nil {
					return err
				}
			}
			return unix.Connect(fd, sa)
		}
		file, err := socketSCTP(limit, netip.MustParseAddrPort(to), connect)
		for errors.Is(err, unix.EINTR) { // by the runtime's signals; with a time limit the kernel does not restart it (signal(7))
			file, err = socketSCTP(limit, netip.MustParseAddrPort(to), connect)
		}
		if err != nil {
			return &net.OpError{Op: "dial", Net: "sctp", Err: os.NewSyscallError("connect", err)}
		}
		defer file.Close()
		conn, err = net.FileConn(file)
		return err
	})
	return conn, err
}

// socketSCTP creates a socket of the one-to-one style (RFC 6458, section 4), which reads and writes like a TCP socket:
// package net, which does not support SCTP, treats it as one. use blocks for at most the limit.
func socketSCTP(limit time.Duration, addr netip.AddrPort, use func(fd int, sa unix.Sockaddr) error) (*os.File, error) {
	family := unix.AF_INET
	if addr.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, err
	}
	timeout := unix.NsecToTimeval(limit.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := use(fd, sockaddr(addr)); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "sctp"), nil
}

func sockaddr(addr netip.AddrPort) unix.Sockaddr {
	if addr.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}
	}
	return &unix.SockaddrInet6{Addr: addr.Addr().As16(), Port: int(addr.Port())}
}
