package gobgp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/routes"
)

// closeSilently closes the connection to a router without a NOTIFICATION, so that a router with graceful restart keeps
// the routes for the next connection (RFC 4724, 4.2). It reports whether there was one. GoBGP sends a NOTIFICATION
// whenever it ends a session (deleteNeighbor in its server.go) and does not expose its sockets, so the socket is
// searched among the process's files. Once closeSilently has returned, nothing more is sent on it.
func closeSilently(p routes.Peer) (found bool, err error) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return false, fmt.Errorf("find the connection to %v: %w", p.Address, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return false, fmt.Errorf("find the connection to %v: %w", p.Address, err)
	}
	var errs []error
	for _, name := range names {
		number, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		fd, err := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, 0) // the number may be reused for another file
		if err != nil {
			continue // closed meanwhile
		}
		if other := peerName(fd); other == netip.AddrPortFrom(p.Address.WithZone(""), p.Port) {
			switch err := unix.Shutdown(fd, unix.SHUT_RDWR); {
			case err == nil:
				found = true
			case !errors.Is(err, unix.ENOTCONN): // else it has already ended
				errs = append(errs, fmt.Errorf("end the connection to %v: %w", other, err))
			}
		}
		unix.Close(fd)
	}
	return found, errors.Join(errs...)
}

// peerName returns the remote end of a TCP connection, without the zone; the zero value for anything else.
func peerName(fd int) (other netip.AddrPort) {
	name, err := unix.Getpeername(fd)
	if err != nil {
		return other
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return other
	}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		other = netip.AddrPortFrom(netip.AddrFrom4(name.Addr), uint16(name.Port))
	case *unix.SockaddrInet6:
		other = netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), uint16(name.Port))
	}
	return other
}
