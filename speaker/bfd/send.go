package bfd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// The ports (RFC 5881, 4; RFC 5883, 5).
const (
	portSingleHop = 3784
	portMultiHop  = 4784
	firstSource   = 49152 // to 65535
)

// classSelector6 is DSCP CS6, for network control, as the byte in the IP header. RFC 5881 requires no value; routers
// send this one.
const classSelector6 = 6 << 5

// recheck is how often the source address of a session that is not up is chosen again by the kernel.
const recheck = 5 * time.Second

func portOf(multiHop bool) uint16 {
	if multiHop {
		return portMultiHop
	}
	return portSingleHop
}

// sender is the socket of one session. Its source port never changes (RFC 5881, 4), and its source address stays the
// same while the session is up.
type sender struct {
	key   Key
	port  uint16
	scope uint32 // index of the interface of a link-local address
	fd    int    // -1 while closed
	// problem is the error that prevents it from sending.
	problem string
	checked time.Time
}

// open opens the socket. used reports whether another session uses a source port.
func (s *sender) open(random *rand.Rand, used func(uint16) bool) (err error) {
	family := unix.AF_INET6
	if s.key.Peer.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open a BFD socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err := mark(fd, family); err != nil {
		return err
	}
	if s.scope, err = s.index(); err != nil {
		return err
	}
	local := s.key.Local
	if !local.IsValid() {
		local = netip.IPv6Unspecified()
		if s.key.Peer.Is4() {
			local = netip.IPv4Unspecified()
		}
	}
	if err := s.bind(fd, local, random, used); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(s.key.Peer, portOf(s.key.MultiHop), s.scope)); err != nil {
		return fmt.Errorf("connect to %v: %w", s.key.Peer, err)
	}
	s.fd = fd
	return nil
}

// mark sets the socket options that BFD requires, and a minimal receive buffer: answers are sent to the well-known
// port.
func mark(fd, family int) error {
	type option struct{ level, name, value int }
	options := []option{{unix.IPPROTO_IP, unix.IP_TTL, 255}, {unix.IPPROTO_IP, unix.IP_TOS, classSelector6}}
	if family == unix.AF_INET6 {
		options = []option{{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255}, {unix.IPPROTO_IPV6, unix.IPV6_TCLASS, classSelector6}}
	}
	options = append(options, option{unix.SOL_SOCKET, unix.SO_PRIORITY, 6}, option{unix.SOL_SOCKET, unix.SO_RCVBUF, 1}) // after IP_TOS, which sets the priority too
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("set option %d of level %d of a BFD socket: %w", o.name, o.level, err)
		}
	}
	return nil
}

// bind binds the socket to its address and a source port that no other session uses.
func (s *sender) bind(fd int, local netip.Addr, random *rand.Rand, used func(uint16) bool) error {
	var err error
	for range 100 {
		port := s.port
		if port == 0 {
			port = firstSource + uint16(random.IntN(1<<16-firstSource))
		}
		if !used(port) {
			if err = unix.Bind(fd, sockaddr(local, port, s.scope)); err == nil {
				s.port = port
				return nil
			}
		}
		if err != nil && !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		s.port = 0
	}
	return fmt.Errorf("send BFD packets from %v: %w", local, err)
}

// index returns the current index of the interface; it changes when the interface is recreated.
func (s *sender) index() (uint32, error) {
	if s.key.Interface == "" {
		return 0, nil
	}
	i, err := net.InterfaceByName(s.key.Interface)
	if err != nil {
		return 0, fmt.Errorf("send BFD packets on interface %s: %w", s.key.Interface, err)
	}
	return uint32(i.Index), nil
}

// send sends a packet. The kernel may report an error of the last packet instead of sending, so it is retried.
func (s *sender) send(b []byte) error {
	if s.fd < 0 {
		return unix.ENOTCONN
	}
	_, err := unix.Write(s.fd, b)
	if err == unix.ECONNREFUSED || err == unix.EHOSTUNREACH {
		_, err = unix.Write(s.fd, b)
	}
	return err
}

func (s *sender) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

// stale reports whether the socket would now differ: another interface of that name, or another source address, because
// the old one may be gone.
func (s *sender) stale() bool {
	if s.fd < 0 {
		return false
	}
	if index, err := s.index(); err == nil && index != s.scope {
		return true
	}
	if s.key.Local.IsValid() {
		return false
	}
	probe := sender{key: s.key, fd: -1}
	if err := probe.open(rand.New(rand.NewPCG(uint64(s.port), uint64(s.fd))), func(uint16) bool { return false }); err != nil {
		return false
	}
	defer probe.close()
	return addressOf(probe.fd) != addressOf(s.fd)
}

// addressOf returns a socket's local address.
func addressOf(fd int) netip.Addr {
	switch a, _ := unix.Getsockname(fd); a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr)
	}
	return netip.Addr{}
}

func sockaddr(a netip.Addr, port uint16, scope uint32) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	if !a.IsLinkLocalUnicast() {
		scope = 0
	}
	return &unix.SockaddrInet6{Port: int(port), Addr: a.As16(), ZoneId: scope}
}
